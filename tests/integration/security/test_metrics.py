"""Metrics of a broker that encrypts them and asks who reads them."""

from __future__ import annotations

import base64
import http.client
import json
import ssl
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from spark_logbus.broker import Broker, BrokerConfig, MetricsConfig, SecurityConfig, TlsConfig
from spark_logbus.coordination.security.access_rules import RuleRegistry
from spark_logbus.coordination.security.users import UserRegistry
from spark_logbus.errors import ConfigError
from spark_logbus.security.acls import Rule
from spark_logbus.security.tls import ClientTls, client_context
from spark_logbus.zookeeper import Session
from tests.helpers import wait_until
from tests.servers.broker import broker_here
from tests.servers.certificates import Authority

ANNA, PROMETHEUS = ("anna", "anna's password"), ("prometheus", "its own password")


@dataclass
class Metrics:
    """A broker whose metrics ask for a login, and its authority."""

    broker: Broker
    authority: Authority
    session: Session

    def get(
        self, path: str, login: tuple[str, str] | None = None, trust: ssl.SSLContext | None = None
    ) -> http.client.HTTPResponse:
        port = int((self.broker.config.data_dir / "metrics.port").read_text())
        trust = trust or client_context(ClientTls(ca=self.authority.ca))
        connection = http.client.HTTPSConnection("127.0.0.1", port, timeout=60, context=trust)
        headers = {}
        if login is not None:
            text = base64.b64encode(":".join(login).encode()).decode()
            headers["Authorization"] = f"Basic {text}"
        connection.request("GET", path, headers=headers)
        return connection.getresponse()


@pytest.fixture
def metrics(tmp_path: Path, chroot: str) -> Iterator[Metrics]:
    authority = Authority(tmp_path / "ca")
    files = authority.files("broker", "127.0.0.1")
    tls = TlsConfig(
        certificate=files.certificate,
        key=files.key,
        port=0,
        client_ca=authority.ca_file,
        client_certificates="required",
    )
    with Session(chroot, client_name="test") as session:
        for name, password in (ANNA, PROMETHEUS):
            UserRegistry(session).add(name, password, now_us=1)
        RuleRegistry(session).add(
            [
                Rule("cluster", "*", "user:prometheus", "describe"),
                Rule("cluster", "*", "certificate:prometheus", "describe"),
            ]
        )
        with broker_here(
            tmp_path / "broker",
            chroot,
            tls=tls,
            security=SecurityConfig(authenticate=True, authorize=True),
            metrics=MetricsConfig(tls=True, authenticate=True),
        ) as broker:
            yield Metrics(broker, authority, session)


def test_metrics_are_for_who_may_describe_the_cluster_and_health_for_all(metrics: Metrics) -> None:
    answer = metrics.get("/metrics")
    assert answer.status == 401
    assert answer.headers["WWW-Authenticate"] == 'Basic realm="logbus", charset="UTF-8"'
    assert json.load(answer)["error_code"] == 401
    assert metrics.get("/metrics", (ANNA[0], "wrong")).status == 401
    refused = metrics.get("/metrics", ANNA)
    assert refused.status == 403
    assert "user:anna may not describe the cluster" in json.load(refused)["message"]
    assert b"logbus_" in metrics.get("/metrics", PROMETHEUS).read()
    for path in ("/healthz", "/livez"):
        assert metrics.get(path).status == 200


def test_a_scraper_is_known_by_its_certificate(metrics: Metrics) -> None:
    for name, status in (("prometheus", 200), ("another", 403)):
        files = metrics.authority.files(name)
        shown = ClientTls(ca=metrics.authority.ca, certificate=files.certificate, key=files.key)
        assert metrics.get("/metrics", trust=client_context(shown)).status == status


def test_a_rule_that_goes_ends_reading_at_once(metrics: Metrics) -> None:
    assert metrics.get("/metrics", PROMETHEUS).status == 200
    RuleRegistry(metrics.session).remove([Rule("cluster", "*", "user:prometheus", "describe")])
    wait_until(lambda: metrics.get("/metrics", PROMETHEUS).status == 403)


def test_a_hundred_guesses_are_limited_and_health_stays(metrics: Metrics) -> None:
    statuses = [metrics.get("/metrics", (ANNA[0], f"guess {n}")).status for n in range(100)]
    assert statuses[0] == 401
    assert statuses.count(429) >= 80
    assert metrics.get("/metrics", PROMETHEUS).status == 200
    assert metrics.get("/healthz").status == 200


def test_settings_of_metrics_that_protect_nothing_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="passwords would cross the network"):
        MetricsConfig(authenticate=True)
    with pytest.raises(ConfigError, match=r"\[tls\] names no certificate"):
        BrokerConfig(id=1, data_dir=tmp_path, metrics=MetricsConfig(tls=True))
    tls = TlsConfig(certificate=tmp_path / "c", key=tmp_path / "k")
    with pytest.raises(ConfigError, match="this broker knows nobody"):
        BrokerConfig(
            id=1, data_dir=tmp_path, tls=tls, metrics=MetricsConfig(tls=True, authenticate=True)
        )
