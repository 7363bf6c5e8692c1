"""Certificates for a cluster that has no authority of its own: one is made here, and signs them."""

from __future__ import annotations

import datetime
import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass, field

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from spark_logbus.errors import AuthenticationError, ConfigError
from spark_logbus.security.principals import Principal

# A clock that is a little behind takes new certificates all the same.
_BACKDATED = datetime.timedelta(minutes=10)


@dataclass(frozen=True, slots=True)
class Pair:
    """A certificate and its private key, as PEM."""

    certificate: str
    key: str = field(repr=False)


def new_authority(name: str, *, days: int) -> Pair:
    """Makes an authority: a key, and a certificate that it signs itself."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = _name(name)
    usage = x509.KeyUsage(
        digital_signature=False, content_commitment=False, key_encipherment=False,
        data_encipherment=False, key_agreement=False, key_cert_sign=True, crl_sign=True,
        encipher_only=False, decipher_only=False,
    )  # fmt: skip
    builder = (
        _begun(subject, subject, key.public_key(), days)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )
    return _pair(builder.sign(key, hashes.SHA256()), key)


def issue(authority: Pair, name: str, *, hosts: Sequence[str], days: int) -> Pair:
    """Makes a certificate for ``name`` (its principal as a client) that is also good for a server
    at ``hosts``: names or IP addresses."""
    signer = x509.load_pem_x509_certificate(authority.certificate.encode())
    try:
        signing_key = serialization.load_pem_private_key(authority.key.encode(), password=None)
    except (TypeError, ValueError) as error:
        raise ConfigError(
            "The authority's key (ca.key) cannot be read, or has a password; take that off."
        ) from error
    if not isinstance(signing_key, ec.EllipticCurvePrivateKey):
        raise ConfigError(
            "The authority's key (ca.key) is not the one that `logbus security init` made."
        )
    key = ec.generate_private_key(ec.SECP256R1())
    uses = [ExtendedKeyUsageOID.CLIENT_AUTH]
    if hosts:
        uses.append(ExtendedKeyUsageOID.SERVER_AUTH)
    builder = (
        _begun(_name(name), signer.subject, key.public_key(), days)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage(uses), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(signing_key.public_key()),
            critical=False,
        )
    )
    if hosts:
        names = x509.SubjectAlternativeName([_host(each) for each in hosts])
        builder = builder.add_extension(names, critical=False)
    return _pair(builder.sign(signing_key, hashes.SHA256()), key)


def _begun(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, days: int
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _BACKDATED)
        .not_valid_after(now + datetime.timedelta(days=days))
    )


def _name(common_name: str) -> x509.Name:
    try:
        return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])
    except ValueError as error:
        raise ConfigError(
            f"{common_name!r} is too long for a certificate, whose name has 64 bytes at most; "
            "choose a shorter one."
        ) from error


def _host(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _pair(certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> Pair:
    return Pair(
        certificate.public_bytes(serialization.Encoding.PEM).decode(),
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        ).decode(),
    )


def first_expiry_s(pem: bytes) -> float:
    """Returns when the first of these certificates expires, in seconds since 1970. Raises
    ValueError."""
    found = x509.load_pem_x509_certificates(pem)
    return min(each.not_valid_after_utc.timestamp() for each in found)


def common_name(der: bytes) -> str:
    """Returns the common name of a certificate that was checked. Raises AuthenticationError."""
    try:
        subject = x509.load_der_x509_certificate(der).subject
        names = [str(each.value) for each in subject.get_attributes_for_oid(NameOID.COMMON_NAME)]
    except ValueError as error:
        raise AuthenticationError("The certificate cannot be read.") from error
    if len(names) != 1 or not names[0]:
        raise AuthenticationError(
            f"The certificate has {len(names)} common names; one is expected, which is its "
            "principal."
        )
    try:
        Principal.parse(f"certificate:{names[0]}")
    except ConfigError as error:
        raise AuthenticationError(
            f"The common name of the certificate is that of no principal: {error.message}"
        ) from error
    return names[0]


def common_name_of(pem: str) -> str:
    """Returns the common name of a certificate, the first in the text. Raises ConfigError."""
    names = _loaded(pem).subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    return str(names[0].value) if names else ""


def hosts_of(pem: str) -> list[str]:
    """Returns the names and addresses that a certificate is good for. Raises ConfigError."""
    try:
        found = _loaded(pem).extensions.get_extension_for_class(x509.SubjectAlternativeName)
    except x509.ExtensionNotFound:
        return []
    return [str(each.value) for each in found.value]


def expires(pem: str) -> datetime.datetime:
    """Returns when a certificate ends to be good. Raises ConfigError."""
    return _loaded(pem).not_valid_after_utc


def _loaded(pem: str) -> x509.Certificate:
    try:
        return x509.load_pem_x509_certificate(pem.encode())
    except ValueError as error:
        raise ConfigError("The text holds no certificate (PEM) that can be read.") from error
