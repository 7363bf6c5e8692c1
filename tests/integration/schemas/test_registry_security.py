"""A registry that encrypts, asks who is there, and lets each do what access rules allow."""

from __future__ import annotations

import json
import logging
import ssl
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from confluent_kafka.schema_registry import Schema, SchemaRegistryClient
from confluent_kafka.schema_registry.error import SchemaRegistryError

from spark_logbus.coordination.security.access_rules import RuleRegistry
from spark_logbus.coordination.security.users import UserRegistry
from spark_logbus.errors import ConfigError
from spark_logbus.http import Handler
from spark_logbus.local.registry import RegistryProcess
from spark_logbus.schemas.registry.administration import SchemaAdministration
from spark_logbus.schemas.registry.registry import SchemaRegistry
from spark_logbus.schemas.rest.access import _NEEDS, _OPEN, Access, RegistrySecurity
from spark_logbus.schemas.rest.api import RestApi
from spark_logbus.schemas.rest.server import RegistryServer
from spark_logbus.security.acls import Rule
from spark_logbus.security.tls import ClientTls, ServerTls, client_context
from spark_logbus.zookeeper import Session
from tests.helpers import wait_until
from tests.servers.certificates import Authority
from tests.servers.registry import Answer, Rest, basic, serving

PASSWORDS = {"anna": "anna's password", "bert": "bért's: password", "admin": "the admin's"}
TEXT, INT, LONG = '"string"', '"int"', '"long"'
NODE = json.dumps({"type": "record", "name": "Node", "fields": []})
USES_NODE = json.dumps(
    {"type": "record", "name": "Use", "fields": [{"name": "node", "type": "Node"}]}
)


@dataclass
class Guarded:
    """A registry with users; the administrator has registered the subject secret (id 1)."""

    server: RegistryServer
    session: Session
    authority: Authority

    @property
    def trust(self) -> ssl.SSLContext:
        return client_context(ClientTls(ca=self.authority.ca))

    def rest(self, user: str | None = None, password: str | None = None) -> Rest:
        login = None if user is None else (user, password or PASSWORDS[user])
        return Rest(self.server, trust=self.trust, login=login)

    def change(self, *rules: str, allow: bool = True, kind: str = "subject") -> list[Rule]:
        """Adds rules, as ``user:anna read orders``, and waits until the registry knows them."""
        made = []
        for text in rules:
            who, operation, name = text.split()
            made.append(Rule(kind, name, who, operation, allow))
        RuleRegistry(self.session).add(made)
        self._wait_for(made)
        return made

    def _wait_for(self, made: list[Rule]) -> None:
        known = self.server._known
        assert known is not None
        wait_until(lambda: set(made) <= set(known.rules.rules))

    def forget(self, rules: list[Rule]) -> None:
        RuleRegistry(self.session).remove(rules)
        known = self.server._known
        assert known is not None
        wait_until(lambda: not set(rules) & set(known.rules.rules))


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "ca")


@pytest.fixture
def guarded(chroot: str, authority: Authority) -> Iterator[Guarded]:
    files = authority.files("registry", "127.0.0.1")
    security = RegistrySecurity(
        tls=ServerTls(
            certificate=files.certificate,
            key=files.key,
            client_ca=authority.ca_file,
            client_certificates="optional",
        ),
        authenticate=True,
        authorize=True,
        super_principals=["user:admin"],
    )
    with Session(chroot, client_name="test") as session:
        for name, password in PASSWORDS.items():
            UserRegistry(session).add(name, password, now_us=1)
        with serving(chroot, security) as server:
            found = Guarded(server, session, authority)
            assert found.rest("admin").register("secret", TEXT).body["id"] == 1
            yield found


def denied(answer: Answer) -> str:
    """The message of a denial in Confluent's form."""
    assert (answer.status, answer.code) == (403, 40301)
    message: str = answer.body["message"]
    return message


def test_who_proves_nothing_or_wrongly_is_told_how_to_log_in(guarded: Guarded) -> None:
    rest = guarded.rest()
    for header in (
        None,
        "Bearer abc",
        "Basic",
        "Basic !",
        "Basic YW5uYQ==",  # no colon
        "Basic /////w==",  # no text
        basic("anna", "wrong"),
        basic("nobody", "wrong"),
        basic("", PASSWORDS["anna"]),
        basic("anna", ""),
        f"{basic('anna', PASSWORDS['anna'])}, Basic x",
    ):
        headers = {} if header is None else {"Authorization": header}
        answer = rest("GET", "/subjects", headers=headers)
        assert (answer.status, answer.code, header) == (401, 401, header)
        assert answer.headers["www-authenticate"] == 'Basic realm="logbus", charset="UTF-8"'
        assert answer.content_type == "application/vnd.schemaregistry.v1+json"
        assert "secret" not in json.dumps(answer.body)
    assert rest("POST", "/subjects/secret/versions", {"schema": INT}).status == 401
    assert rest("GET", "/schemas/ids/1").status == 401
    assert rest("GET", "/healthz").body == {"status": "ok"}


def test_users_see_and_do_what_rules_allow_of_subjects(guarded: Guarded) -> None:
    anna, bert, admin = guarded.rest("anna"), guarded.rest("bert"), guarded.rest("admin")
    assert anna("GET", "/subjects").body == []
    said = denied(anna.register("orders", INT))
    assert said.startswith("user:anna may not write the subject orders. Ask an administrator")
    guarded.change("user:anna write orders", "user:bert read ord*")
    assert anna.register("orders", INT).body["id"] == 2
    assert anna("GET", "/subjects").body == ["orders"]
    assert bert("GET", "/subjects").body == ["orders"]
    assert admin("GET", "/subjects").body == ["orders", "secret"]
    for path in ("", "/1", "/latest/schema", "/1/referencedby"):
        denied(anna("GET", f"/subjects/orders/versions{path}"))
        assert bert("GET", f"/subjects/orders/versions{path}").status == 200
    denied(anna("POST", "/subjects/orders", {"schema": INT}))
    assert bert("POST", "/subjects/orders", {"schema": INT}).body["id"] == 2
    assert [each["subject"] for each in bert("GET", "/schemas").body] == ["orders"]
    assert anna("GET", "/schemas").body == []
    for rest in (anna, bert):
        denied(rest("DELETE", "/subjects/orders"))
        denied(rest("DELETE", "/subjects/orders/versions/1"))
        denied(rest("PUT", "/config/orders", {"compatibility": "NONE"}))
        denied(rest("PUT", "/mode/orders", {"mode": "READONLY"}))
        denied(rest("DELETE", "/mode/orders"))
        for path in ("/config", "/mode", "/config/:.:", "/mode/:.:"):
            assert "the cluster" in denied(rest("GET", path))
            assert "the cluster" in denied(rest("DELETE", path))
    assert bert("GET", "/config/orders?defaultToGlobal=true").status == 200
    guarded.change("user:bert delete orders", "user:bert alter orders")
    assert bert("PUT", "/config/orders", {"compatibility": "NONE"}).status == 200
    assert bert("DELETE", "/subjects/orders").body == [1]
    guarded.change("user:bert alter *", kind="cluster")
    assert bert("PUT", "/config", {"compatibility": "FULL"}).status == 200
    assert bert("GET", "/config").body == {"compatibilityLevel": "FULL"}


def test_rules_bind_at_once_and_a_denial_wins(guarded: Guarded) -> None:
    anna = guarded.rest("anna")
    rules = guarded.change("user:anna read *")
    assert anna("GET", "/subjects/secret/versions/1").status == 200
    assert anna("GET", "/schemas/ids/1").body == {"schema": TEXT}
    denial = guarded.change("user:anna read sec*", allow=False)
    denied(anna("GET", "/subjects/secret/versions/1"))
    denied(anna("GET", "/schemas/ids/1"))
    guarded.forget(denial)
    assert anna("GET", "/schemas/ids/1").status == 200
    guarded.forget(rules)
    denied(anna("GET", "/schemas/ids/1"))


def test_an_id_is_read_by_who_may_read_a_subject_that_has_it(guarded: Guarded) -> None:
    anna, admin = guarded.rest("anna"), guarded.rest("admin")
    guarded.change("user:anna read mine", "user:anna describe known")
    denied(anna("GET", "/schemas/ids/1"))
    denied(anna("GET", "/schemas/ids/1/schema"))
    assert anna("GET", "/schemas/ids/1/subjects").body == []
    assert anna("GET", "/schemas/ids/1/versions").body == []
    assert anna("GET", "/schemas/ids/9").code == 40403
    for subject in ("known", "mine"):
        assert admin.register(subject, TEXT).body["id"] == 1
    assert anna("GET", "/schemas/ids/1").body == {"schema": TEXT}
    assert anna("GET", "/schemas/ids/1/schema").body == "string"
    assert anna("GET", "/schemas/ids/1/subjects").body == ["known", "mine"]
    assert admin("GET", "/schemas/ids/1/subjects").body == ["known", "mine", "secret"]
    assert admin("DELETE", "/subjects/mine").body == [1]
    assert anna("GET", "/schemas/ids/1").status == 200, "records that were written with it remain"


def test_no_schema_refers_to_what_its_sender_may_not_read(guarded: Guarded) -> None:
    anna, admin = guarded.rest("anna"), guarded.rest("admin")
    assert admin.register("node", NODE).status == 200
    guarded.change("user:anna all mine", "user:anna delete node")
    reference = {"name": "Node", "subject": "node", "version": 1}
    body = {"schema": USES_NODE, "references": [reference]}
    for path in (
        "/subjects/mine",
        "/subjects/mine/versions",
        "/compatibility/subjects/mine/versions",
    ):
        assert "read the subject node" in denied(anna("POST", path, body))
    foreign = {**reference, "subject": ":.:node"}
    denied(anna("POST", "/subjects/mine/versions", {**body, "references": [foreign]}))
    assert admin.register("hers", USES_NODE, references=[reference]).status == 200
    refused = anna("DELETE", "/subjects/node/versions/1")
    assert (refused.code, "hers" in refused.body["message"]) == (42206, False)
    guarded.change("user:anna read node", "user:anna describe hers")
    assert anna.register("mine", USES_NODE, references=[reference]).status == 200
    assert "'hers'" in anna("DELETE", "/subjects/node/versions/1").body["message"]


def test_a_name_of_a_subject_is_checked_as_it_is_used(guarded: Guarded) -> None:
    anna = guarded.rest("anna")
    guarded.change("user:anna read mine")
    for path in (
        "secret",
        ":.:secret",
        "%73ecret",
        "mine%2f..%2fsecret",
        "mine/../secret",
        "secret/",
    ):
        answer = anna("GET", f"/subjects/{path}/versions/1")
        assert answer.status in (403, 404)
        assert TEXT not in json.dumps(answer.body)
    for path in ("mine/../secret", "./secret", ":.:mine", "mine"):
        assert anna("GET", f"/subjects/{path}/versions/1").status in (403, 404)


def test_failed_logins_are_limited_and_the_limit_ends_nobody_else(
    guarded: Guarded, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    statuses = [
        guarded.rest("anna", f"guess {number}")("GET", "/subjects").status for number in range(100)
    ]
    assert statuses[:5] == [401] * 5
    assert statuses.count(429) >= 80
    refused = guarded.rest("anna")("GET", "/subjects")
    assert (refused.status, refused.headers["retry-after"]) == (429, "5")
    assert guarded.rest("bert")("GET", "/subjects").status == 200
    assert guarded.rest("admin")("GET", "/subjects").body == ["secret"]
    assert "guess" not in caplog.text
    told = [json.loads(each.message) for each in caplog.records if each.name == "logbus.audit"]
    failures = [each for each in told if each["event"] == "login failed"]
    assert 0 < len(failures) < 100
    assert {(each["principal"], each["mechanism"]) for each in failures} == {("anna", "BASIC")}
    # Not by a new name each time either, of which a stranger has as many as there is room on disk.
    many = [guarded.rest(f"user {each}", "x")("GET", "/subjects").status for each in range(300)]
    assert many.count(429) > 150
    lines = [each for each in caplog.records if "login failed" in each.getMessage()]
    assert len(lines) - len(failures) == many.count(401)


def test_denials_and_changes_are_in_the_audit_log(
    guarded: Guarded, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    guarded.rest("anna")("DELETE", "/subjects/secret")
    guarded.rest("admin")("DELETE", "/subjects/secret")
    told = [json.loads(each.message) for each in caplog.records if each.name == "logbus.audit"]
    assert [(each["event"], each["principal"], each["on"]) for each in told] == [
        ("denied", "user:anna", "delete the subject secret"),
        ("asked", "user:admin", "the subject secret"),
    ]
    assert PASSWORDS["admin"] not in caplog.text
    assert basic("admin", PASSWORDS["admin"]).split()[1] not in caplog.text


def test_a_user_who_is_removed_or_has_a_new_password_is_out_at_once(guarded: Guarded) -> None:
    anna = guarded.rest("anna")
    assert anna("GET", "/subjects").status == 200
    users = UserRegistry(guarded.session)
    users.set_password("anna", "her new password", now_us=2)
    wait_until(lambda: anna("GET", "/subjects").status == 401)
    renewed = guarded.rest("anna", "her new password")
    assert renewed("GET", "/subjects").status == 200
    users.remove("anna")
    wait_until(lambda: renewed("GET", "/subjects").status == 401)


def test_a_certificate_is_an_identity_and_a_login_comes_before_it(guarded: Guarded) -> None:
    files = guarded.authority.files("etl")
    shown = ClientTls(ca=guarded.authority.ca, certificate=files.certificate, key=files.key)
    etl = Rest(guarded.server, trust=client_context(shown))
    assert "certificate:etl may not" in denied(etl("GET", "/subjects/secret/versions"))
    guarded.change("certificate:etl read secret")
    assert etl("GET", "/subjects/secret/versions").body == [1]
    login = {"Authorization": basic("anna", PASSWORDS["anna"])}
    assert etl("GET", "/subjects", headers=login).body == []


def test_every_route_says_what_it_needs(chroot: str) -> None:
    session = Session(chroot, client_name="test")
    asked: list[str] = []

    class Noting(Access):
        def guarded(self, route: str, handler: Handler) -> Handler:
            asked.append(route)
            return super().guarded(route, handler)

    access = Noting(RegistrySecurity())
    RestApi(SchemaRegistry(session), SchemaAdministration(session), access).routes()
    session.close()
    assert sorted(asked) == sorted([*_NEEDS, *_OPEN])


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"authenticate": True}, "needs a certificate"),
        ({"authorize": True}, "authenticate them, too"),
        ({"super_principals": ["admin"]}, "'admin' is no principal"),
    ],
)
def test_settings_that_protect_nothing_are_refused(settings: dict[str, object], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        RegistrySecurity(**settings)  # type: ignore[arg-type]


def test_confluents_client_logs_in_and_is_told_what_it_may_not(guarded: Guarded) -> None:
    guarded.change("user:bert write orders", "user:bert read orders")
    settings = {
        "url": guarded.server.url,
        "ssl.ca.location": str(guarded.authority.ca_file),
        "basic.auth.user.info": f"bert:{PASSWORDS['bert']}",
    }
    with SchemaRegistryClient(settings) as client:
        made = client.register_schema("orders", Schema(LONG, "AVRO"))
        assert client.get_latest_version("orders").schema_id == made
        assert client.get_subjects() == ["orders"]
        with pytest.raises(SchemaRegistryError) as met:
            client.register_schema("secret", Schema(TEXT, "AVRO"))
    assert (met.value.http_status_code, met.value.error_code) == (403, 40301)
    stranger = {**settings, "basic.auth.user.info": "bert:wrong password"}
    with SchemaRegistryClient(stranger) as client, pytest.raises(SchemaRegistryError) as met:
        client.get_subjects()
    assert met.value.http_status_code == 401


def test_the_command_serves_by_tls_and_asks_who_is_there(
    guarded: Guarded, tmp_path: Path, chroot: str
) -> None:
    files = guarded.authority.files("other", "127.0.0.1")

    class Process(RegistryProcess):
        def _prepare(self) -> list[str]:
            return [
                *super()._prepare(), "--tls-certificate", str(files.certificate),
                "--tls-key", str(files.key), "--authenticate", "--authorize",
                "--super-principal", "user:admin",
            ]  # fmt: skip

    process = Process(tmp_path / "process", zookeeper=chroot)
    process.start()
    try:
        assert process.url.startswith("https://127.0.0.1:")
        request = urllib.request.Request(f"{process.url}/subjects")
        with pytest.raises(urllib.error.HTTPError, match="401"):
            urllib.request.urlopen(request, timeout=60, context=guarded.trust)
        for user, shown in (("admin", ["secret"]), ("anna", [])):
            request.add_header("Authorization", basic(user, PASSWORDS[user]))
            with urllib.request.urlopen(request, timeout=60, context=guarded.trust) as answer:
                assert json.load(answer) == shown
        request = urllib.request.Request(f"{process.url}/subjects/secret", method="DELETE")
        request.add_header("Authorization", basic("anna", PASSWORDS["anna"]))
        with pytest.raises(urllib.error.HTTPError, match="403"):
            urllib.request.urlopen(request, timeout=60, context=guarded.trust)
        log = process.log_file.read_text()
    finally:
        process.stop()
    assert '"event": "denied", "principal": "user:anna"' in log
    assert not any(each in log for each in PASSWORDS.values())
