"""Counters of clients, as Prometheus reads them."""

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from spark_logbus.client.metrics import METRICS, ClientCollector, ClientKind
from spark_logbus.errors import ConfigError


class _Client:
    def __init__(self, kind: ClientKind, **numbers: int) -> None:
        self.metrics_kind = kind
        self.numbers: dict[str, int | float] = dict(numbers)

    def metrics(self) -> dict[str, int | float]:
        return self.numbers


def _shown(collector: ClientCollector) -> str:
    registry = CollectorRegistry()
    registry.register(collector)
    return generate_latest(registry).decode()


def test_clients_are_shown_by_their_names() -> None:
    one = _Client("producer", record_send_total=3, buffer_used_bytes=10)
    other = _Client("producer", record_send_total=4)
    reader = _Client("consumer", records_lag=5)
    shown = _shown(ClientCollector(one, reader, orders=other))
    assert 'logbus_producer_record_send_total{client="producer-1"} 3.0' in shown
    assert 'logbus_producer_record_send_total{client="orders"} 4.0' in shown
    assert 'logbus_producer_buffer_used_bytes{client="producer-1"} 10.0' in shown
    assert 'logbus_consumer_records_lag{client="consumer-2"} 5.0' in shown
    assert "# TYPE logbus_producer_record_send_total counter" in shown
    assert "# TYPE logbus_consumer_records_lag gauge" in shown
    for metric in ("record_send_total", "buffer_used_bytes"):
        assert METRICS["producer"][metric] in shown
    assert shown.count("# HELP logbus_producer_record_send_total") == 1


def test_a_client_that_is_gone_is_shown_no_more() -> None:
    one, other = _Client("consumer", records_lag=1), _Client("consumer", records_lag=2)
    collector = ClientCollector(one, other)
    del one
    assert "consumer-1" not in _shown(collector)
    collector.remove(other)
    collector.remove(other)
    assert "consumer-2" not in _shown(collector)


def test_two_clients_cannot_have_one_name() -> None:
    one, other = _Client("consumer"), _Client("consumer")
    collector = ClientCollector(orders=one)
    with pytest.raises(ConfigError, match="'orders'"):
        collector.add(other, name="orders")
    with pytest.raises(ConfigError, match="'orders'"):
        collector.add(other, name="orders")
