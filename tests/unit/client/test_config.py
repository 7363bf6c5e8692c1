from __future__ import annotations

from typing import Any

import pytest

from spark_logbus.client import Bootstrap, ClientConfig, ConsumerConfig, ProducerConfig
from spark_logbus.errors import ConfigError, InvalidNameError
from spark_logbus.model import BrokerAddress


@pytest.mark.parametrize(
    ("kind", "values", "named"),
    [
        (ClientConfig, {"request_timeout_ms": 0}, "request_timeout_ms"),
        (ClientConfig, {"retry_backoff_max_ms": 10}, "retry_backoff_max_ms"),
        (ClientConfig, {"connect_timeout_ms": "5"}, "connect_timeout_ms"),
        (ProducerConfig, {"linger_ms": -1}, "linger_ms"),
        (ProducerConfig, {"buffer_bytes": 10}, "buffer_bytes"),
        (ProducerConfig, {"acks": "all"}, "acks"),
        (ConsumerConfig, {"out_of_range": "middle"}, "out_of_range"),
        (ConsumerConfig, {"fetch_bytes": True}, "fetch_bytes"),
    ],
)
def test_unusable_values_are_refused_by_name(
    kind: type[Any], values: dict[str, Any], named: str
) -> None:
    with pytest.raises(ConfigError, match=named):
        kind(**values)


def test_a_group_name_follows_the_name_rules() -> None:
    with pytest.raises(InvalidNameError):
        ConsumerConfig(group="a/b")


def test_bootstrap_from_text() -> None:
    bootstrap = Bootstrap.of("one:9092, [::1]:9093")
    assert bootstrap.brokers == (BrokerAddress(-1, "one", 9092), BrokerAddress(-1, "::1", 9093))


@pytest.mark.parametrize("text", ["", "host", "host:", ":1", "host:x", "host:70000"])
def test_bootstrap_refuses_what_is_no_address(text: str) -> None:
    with pytest.raises(ConfigError, match="host:port"):
        Bootstrap.of(text)


def test_bootstrap_needs_a_broker() -> None:
    with pytest.raises(ConfigError, match="at least one broker"):
        Bootstrap(())
