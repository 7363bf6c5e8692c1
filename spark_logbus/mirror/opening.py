"""A mirror with the clusters that it needs, opened and closed together."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Final, TypeVar

from spark_logbus.client import ClientConfig, Cluster
from spark_logbus.mirror.config import MirrorConfig
from spark_logbus.mirror.round import Mirror
from spark_logbus.mirror.schemas import SchemaCopier
from spark_logbus.mirror.source.logbus import LogbusSource
from spark_logbus.mirror.source.source import MirrorSource
from spark_logbus.retry import RetryPolicy
from spark_logbus.zookeeper import Session

T = TypeVar("T")

# What fails for longer is told, and tried again by the mirror itself.
CLIENT: Final = ClientConfig(client_id="mirror", retry_deadline_ms=15_000)


@contextmanager
def source_at(
    *, zookeeper: str | None = None, kafka: str | None = None, client: ClientConfig = CLIENT
) -> Iterator[MirrorSource]:
    """The source at an address: one of the two. Raises what connecting does, and ConfigError where
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
    """A mirror into the cluster of the ZooKeeper at ``target``, from the one at ``zookeeper`` or
    from a ``kafka`` at these bootstrap servers; it holds its lock. LockHeldError says who runs it
    already. ``client`` has the settings of its connections to logbus.

    A cluster that is away is waited for, and a warning says so. After ``config.give_up_ms`` of
    that the last error is raised, with the name of the side that did not answer.
    """
    patience = RetryPolicy(limit_s=config.give_up_ms / 1000)
    with ExitStack() as open_:

        def connected(side: str, to: Callable[[], AbstractContextManager[T]]) -> T:
            """To all of a cluster at once, so that it is waited for once."""
            return patience.retry(f"Connecting to the {side}", lambda: open_.enter_context(to()))

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
