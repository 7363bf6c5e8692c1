from __future__ import annotations

import pytest

from spark_logbus.errors import AuthenticationError, ConfigError
from spark_logbus.security.acls import Rule
from spark_logbus.security.certificates import common_name, issue, new_authority
from spark_logbus.security.principals import Principal
from spark_logbus.security.scram import ClientExchange

DECOMPOSED = "rene\u0301"  # as some keyboards type it
WIDE = "\uff41nna"


@pytest.mark.parametrize("name", ["anna", "rené", "a b", "user:admin", "*.example.com", "日本"])
def test_a_principal_is_what_its_text_says(name: str) -> None:
    assert Principal.parse(f"certificate:{name}") == Principal("certificate", name)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("user:anna ", "has no space before or after .* as 'user:anna' has"),
        ("user: anna", "as 'user:anna' has"),
        (f"user:{DECOMPOSED}", "as 'user:rené' has"),
        (f"user:{WIDE}", "as 'user:anna' has"),
        ("user:*", "principals have no prefixes"),
        ("user:team-*", "principals have no prefixes"),
        ("User:anna", "is no principal"),
        ("user:", "is no principal"),
        ("user:a\u202en", "printable"),
    ],
)
def test_a_rule_about_somebody_who_can_never_come_is_refused(text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        Principal.parse(text)
    with pytest.raises(ConfigError, match=said):
        Rule.checked(resource="topic", name="t", principal=text, operation="read", allow=False)


@pytest.mark.parametrize("typed", [DECOMPOSED, WIDE, "anna"])
def test_names_in_their_usual_form_are_those_that_log_in(typed: str) -> None:
    sent = ClientExchange("SCRAM-SHA-256", typed, "her password").first().decode()
    name = sent.removeprefix("n,,n=").partition(",")[0]
    assert Principal.parse(f"user:{name}").name == name


@pytest.mark.parametrize(
    ("resource", "name"),
    [
        ("topic", "orders "),
        ("topic", " orders*"),
        ("topic", "orders/eu"),
        ("topic", "ördérs"),
        ("group", "nightly\n"),
        ("subject", "orders-value*?"),
        ("mirror", "a b"),
        ("writer", "etl\n"),
    ],
)
def test_a_rule_about_what_cannot_be_there_is_refused(resource: str, name: str) -> None:
    with pytest.raises(ConfigError, match="name"):
        Rule.checked(
            resource=resource, name=name, principal="user:anna", operation="read", allow=False
        )


@pytest.mark.parametrize(
    ("resource", "name"),
    [
        ("topic", "*"),
        ("topic", "orders.eu_1-2"),
        ("topic", "orders*"),
        ("lock", "s3://warehouse/a b"),
        ("writer", "app name*"),
        ("cluster", "*"),
    ],
)
def test_a_rule_about_what_can_be_there_is_taken(resource: str, name: str) -> None:
    rule = Rule.checked(resource=resource, name=name, principal="*", operation="all", allow=False)
    assert rule.name == name


@pytest.mark.parametrize("name", ["admin ", WIDE, "team-*"])
def test_a_certificate_that_looks_like_that_of_somebody_else_is_of_nobody(name: str) -> None:
    from cryptography import x509
    from cryptography.hazmat.primitives.serialization import Encoding

    pair = issue(new_authority("test", days=2), name, hosts=[], days=1)
    der = x509.load_pem_x509_certificate(pair.certificate.encode()).public_bytes(Encoding.DER)
    with pytest.raises(AuthenticationError, match="common name"):
        common_name(der)
