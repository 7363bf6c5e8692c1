"""``logbus registry``: serve the schema registry in the foreground."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Annotated

import typer

from spark_logbus.cli.options import DEFAULT_ZOOKEEPER, ZooKeeper
from spark_logbus.cli.server.serving import serve
from spark_logbus.errors import ConfigError
from spark_logbus.security.audit_log import AUDIT_LOGGER
from spark_logbus.security.tls import ServerTls


def registry(
    host: Annotated[
        str, typer.Option(help="The address to listen on; 0.0.0.0 for all of this machine's.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", "-p", help="0: any free one.")] = 8081,
    preferred_port: Annotated[
        int | None, typer.Option(help="With --port 0: the one to take if it is free.")
    ] = None,
    ready_file: Annotated[
        Path | None, typer.Option(help="Write the URL to this file once requests are served.")
    ] = None,
    tls_certificate: Annotated[
        Path | None,
        typer.Option(help="Encrypt: the certificate, and those that lead to its authority (PEM)."),
    ] = None,
    tls_key: Annotated[
        Path | None, typer.Option(help="The key of the certificate, without a password (PEM).")
    ] = None,
    tls_client_ca: Annotated[
        Path | None, typer.Option(help="Authorities that sign certificates of clients (PEM).")
    ] = None,
    client_certificates: Annotated[
        str, typer.Option(help="none, optional or required: whether clients show a certificate.")
    ] = "none",
    authenticate: Annotated[
        bool,
        typer.Option(help="Take users of the cluster (HTTP Basic) and certificates, nobody else."),
    ] = False,
    authorize: Annotated[
        bool, typer.Option(help="Allow what access rules about subjects do (logbus acls).")
    ] = False,
    super_principal: Annotated[
        list[str] | None, typer.Option(help="Whom no rule binds, as user:admin. Repeatable.")
    ] = None,
    zookeeper: ZooKeeper = DEFAULT_ZOOKEEPER,
) -> None:
    """Serve schemas over Confluent's Schema Registry API until SIGTERM or Ctrl-C.

    All that is kept is in ZooKeeper: any number of registries can run side by side. Without a
    certificate nothing is encrypted, and without --authenticate and --authorize whoever reaches it
    may do everything.

    \b
    Example:
      logbus registry --host 0.0.0.0 --port 8081
      logbus registry --tls-certificate host.pem --tls-key host.key --authenticate --authorize
    """
    from spark_logbus.schemas.rest.access import RegistrySecurity
    from spark_logbus.schemas.rest.server import RegistryServer

    server = RegistryServer(
        zookeeper=zookeeper,
        host=host,
        port=port,
        preferred_port=preferred_port,
        security=RegistrySecurity(
            tls=_tls(tls_certificate, tls_key, tls_client_ca, client_certificates),
            authenticate=authenticate,
            authorize=authorize,
            super_principals=super_principal or (),
        ),
    )
    for name in ("spark_logbus", AUDIT_LOGGER):
        logging.getLogger(name).setLevel(logging.INFO)
    serve(
        server,
        "The registry",
        address=lambda: server.url,
        ready_file=ready_file,
        does="Schemas are served",
    )


def _tls(
    certificate: Path | None, key: Path | None, client_ca: Path | None, client_certificates: str
) -> ServerTls | None:
    if certificate is not None and key is not None:
        return ServerTls(
            certificate=certificate,
            key=key,
            client_ca=client_ca,
            client_certificates=client_certificates,
        )
    if certificate is not None or key is not None:
        raise ConfigError("--tls-certificate and --tls-key are given together, or neither.")
    if client_ca is not None or client_certificates != "none":
        raise ConfigError(
            "--tls-client-ca and --client-certificates need --tls-certificate and --tls-key."
        )
    return None
