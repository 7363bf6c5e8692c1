from __future__ import annotations

from spark_logbus.client import Bootstrap, ClientConfig, Cluster
from spark_logbus.client.consumer.failures import PartitionFailures
from spark_logbus.errors import BrokerUnavailableError, RequestTimeoutError
from spark_logbus.model import TopicPartition
from tests.fakes.clock import ManualClock

TP = TopicPartition("t", 0)
CONFIG = ClientConfig(retry_backoff_ms=100, retry_backoff_max_ms=100)


def test_a_try_that_held_up_others_is_not_made_again_for_as_long() -> None:
    clock = ManualClock()
    with Cluster(Bootstrap.of("localhost:1"), CONFIG, clock=clock) as cluster:
        failures = PartitionFailures(cluster)
        began = clock.monotonic()
        clock.advance(5)
        failures.record_failure([TP], RequestTimeoutError("Silent."), began=began)
        clock.advance(4.9)
        assert not failures.may_try(TP)
        clock.advance(0.2)
        assert failures.may_try(TP)


def test_an_instant_failure_is_retried_after_a_pause() -> None:
    clock = ManualClock()
    with Cluster(Bootstrap.of("localhost:1"), CONFIG, clock=clock) as cluster:
        failures = PartitionFailures(cluster)
        failures.record_failure([TP], BrokerUnavailableError("Refused."), began=clock.monotonic())
        assert not failures.may_try(TP)
        clock.advance(0.11)
        assert failures.may_try(TP)
