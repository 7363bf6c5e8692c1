"""Opens a mirror with the clusters that it needs, and runs it round after round, through times in
which a cluster is away."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from typing import Final, TypeVar

from spark_logbus.client import ClientConfig, Cluster
from spark_logbus.errors import (
    LockHeldError,
    LogbusError,
    OffsetOutOfRangeError,
    OutOfOrderSequenceError,
    StagedDataLostError,
    UnknownProducerError,
)
from spark_logbus.mirror.config import MirrorConfig
from spark_logbus.mirror.round import Mirror, PartitionLag, RoundReport
from spark_logbus.mirror.schemas import SchemaCopier
from spark_logbus.mirror.source.logbus import LogbusSource
from spark_logbus.mirror.source.source import MirrorSource
from spark_logbus.mirror.staging import StoppedError
from spark_logbus.model import TopicPartition
from spark_logbus.retry import Backoff, RetryPolicy
from spark_logbus.zookeeper import Session

T = TypeVar("T")

# What fails for longer is told, and tried again by the mirror itself.
CLIENT: Final = ClientConfig(client_id="mirror", retry_deadline_ms=15_000)

# What was staged is gone, as with the disk of a broker: the round is done anew. Or what was to be
# read is: the next try finds out, and says what is lost.
_DONE_ANEW: Final = (
    StagedDataLostError,
    OutOfOrderSequenceError,
    UnknownProducerError,
    OffsetOutOfRangeError,
)


# -- opening ------------------------------------------------------------------------------


@contextmanager
def source_at(
    *, zookeeper: str | None = None, kafka: str | None = None, client: ClientConfig = CLIENT
) -> Iterator[MirrorSource]:
    """Opens the source at one of two addresses. Raises what connecting does, and ConfigError where
    the library for Kafka is not installed."""
    if kafka is not None:
        # Imported here: it is there only with the extra kafka.
        from spark_logbus.mirror.source.kafka import KafkaSource

        source = KafkaSource(kafka)
        try:
            source.connect()
            yield source
        finally:
            source.close()
        return
    with _logbus_at(zookeeper, client, name="mirror") as (cluster, session):
        yield LogbusSource(cluster, session)


@contextmanager
def _logbus_at(
    zookeeper: str | None, client: ClientConfig, *, name: str
) -> Iterator[tuple[Cluster, Session]]:
    with (
        Cluster.from_zookeeper(zookeeper, client) as cluster,
        Session(str(cluster.zookeeper), client_name=name, expects_cluster=True) as session,
    ):
        yield cluster, session


@contextmanager
def open_mirror(
    config: MirrorConfig,
    *,
    target: str,
    zookeeper: str | None = None,
    kafka: str | None = None,
    client: ClientConfig = CLIENT,
) -> Iterator[Mirror]:
    """Opens a mirror into the cluster of the ZooKeeper at ``target``, from the one at ``zookeeper``
    or from a ``kafka`` at these bootstrap servers; it holds its lock. LockHeldError names the
    process that runs it already. ``client`` has the settings of its connections to logbus.

    A cluster that is away is waited for, and a warning says so. After ``config.give_up_ms`` of
    that the last error is raised, with the name of the side that did not answer.
    """
    retry = RetryPolicy(limit_s=config.give_up_ms / 1000)
    with ExitStack() as open_:

        def connected(side: str, to: Callable[[], AbstractContextManager[T]]) -> T:
            """Connects to all of a cluster at once, so that it is waited for once."""
            return retry.retry(f"Connecting to the {side}", lambda: open_.enter_context(to()))

        source: MirrorSource
        there = None
        if kafka is None:
            cluster, there = connected(
                "source", lambda: _logbus_at(zookeeper, client, name="mirror")
            )
            source = LogbusSource(cluster, there)
        else:
            source = connected("source", lambda: source_at(kafka=kafka))
        into, session = connected(
            "target", lambda: _logbus_at(target, client, name=f"mirror-{config.name}")
        )
        schemas = None if there is None else SchemaCopier(there, session)
        yield open_.enter_context(
            Mirror(config, source=source, target=into, session=session, schemas=schemas)
        )


# -- running ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class MirrorProgress:
    """Progress after a round, or after a look that found nothing new (``round`` is None)."""

    round: RoundReport | None
    lags: list[PartitionLag]
    records: int
    """Copied by this run."""

    size_bytes: int


class Listener:
    """Hears how a run goes; what it does not override it does not care about."""

    def progressed(self, progress: MirrorProgress) -> None:
        """Hears that a round is over, or that there is nothing new."""

    def failed(self, error: LogbusError) -> None:
        """Hears of a failure that is tried again until it succeeds, once for each reason."""

    def recovered(self) -> None:
        """Hears that the mirror goes on after failures."""


def run_mirror(mirror: Mirror, *, once: bool, listener: Listener) -> int:
    """Copies until ``mirror.stop`` is called, or, ``once``, all that the source had at the start;
    returns the number of records that were copied.

    Raises what no retry can mend, LockHeldError when another process has the mirror, and with
    ``once`` what has failed for ``give_up_ms``.
    """
    return _Runner(mirror, once, listener).run()


class _Runner:
    def __init__(self, mirror: Mirror, once: bool, listener: Listener) -> None:
        self._mirror = mirror
        self._once = once
        self._listener = listener
        self._backoff = Backoff(first_ms=100, max_ms=mirror.config.retry_max_ms)
        self._goals: dict[TopicPartition, int] | None = None
        self._failures = 0
        self._failing_since = 0.0
        self._told = ""
        self._records = 0
        self._size_bytes = 0

    def run(self) -> int:
        config, stopping = self._mirror.config, self._mirror.stopping
        while not stopping.is_set():
            try:
                report = self._mirror.copy_round()
            except StoppedError:
                break
            except LogbusError as error:
                self._wait_after(error)
                continue
            self._note(report)
            if self._once and self._reached(report):
                break
            if report is None:
                stopping.wait(config.poll_ms / 1000)
        return self._records

    def _note(self, report: RoundReport | None) -> None:
        if self._failures:
            self._failures, self._told = 0, ""
            self._listener.recovered()
        if report is not None:
            self._records += report.records or 0
            self._size_bytes += report.size_bytes
        self._listener.progressed(
            MirrorProgress(report, self._mirror.lags(), self._records, self._size_bytes)
        )

    def _reached(self, report: RoundReport | None) -> bool:
        """True if all is copied that was there at the first look."""
        lags = self._mirror.lags()
        if self._goals is None and lags:
            self._goals = {lag.topic_partition: lag.end for lag in lags}
        if report is None:
            return True
        goals = self._goals
        return goals is not None and all(
            lag.position >= goals.get(lag.topic_partition, 0) for lag in lags
        )

    def _wait_after(self, error: LogbusError) -> None:
        """Pauses before the next try. Raises what another try cannot mend."""
        now = time.monotonic()
        mendable = error.retriable or isinstance(error, _DONE_ANEW)
        if not mendable or isinstance(error, LockHeldError):
            raise error
        self._failing_since = self._failing_since if self._failures else now
        if self._once and now - self._failing_since > self._mirror.config.give_up_ms / 1000:
            raise error
        self._failures += 1
        if str(error) != self._told:
            self._told = str(error)
            self._listener.failed(error)
        self._mirror.stopping.wait(self._backoff.pause_s(self._failures))
