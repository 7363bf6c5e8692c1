"""A mirror with the clusters that it needs, opened and closed together."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Final

from spark_logbus.client import ClientConfig, Cluster
from spark_logbus.mirror.config import MirrorConfig
from spark_logbus.mirror.logbus_source import LogbusSource
from spark_logbus.mirror.mirror import Mirror
from spark_logbus.mirror.schemas import SchemaCopier
from spark_logbus.mirror.source import Source
from spark_logbus.retry import RetryPolicy
from spark_logbus.zookeeper import Session

# What fails for longer is told, and tried again by the mirror itself.
CLIENT: Final = ClientConfig(client_id="mirror", retry_deadline_ms=15_000)


@contextmanager
def source_at(
    *, zookeeper: str | None = None, kafka: str | None = None, client: ClientConfig = CLIENT
) -> Iterator[Source]:
    """The source at an address: one of the two. Raises what connecting does, and ConfigError where
    the library for Kafka is not installed."""
    if kafka is not None:
        # Imported here: it is there only with the extra kafka.
        from spark_logbus.mirror.kafka_source import KafkaSource

        source = KafkaSource(kafka)
        try:
            yield source
        finally:
            source.close()
        return
    with (
        Cluster.from_zookeeper(zookeeper, client) as cluster,
        Session(str(cluster.zookeeper), client_name="mirror", expects_cluster=True) as session,
    ):
        yield LogbusSource(cluster, session)


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

    A cluster that is away is waited for, and a warning says so. After ``config.give_up_ms`` the
    last error is raised, with the name of the side that did not answer.
    """
    patience = RetryPolicy(limit_s=config.give_up_ms / 1000)
    with ExitStack() as open_:
        source = patience.retry(
            "Connecting to the source",
            lambda: open_.enter_context(source_at(zookeeper=zookeeper, kafka=kafka, client=client)),
        )
        cluster = patience.retry(
            "Connecting to the target",
            lambda: open_.enter_context(Cluster.from_zookeeper(target, client)),
        )
        session = patience.retry(
            "Connecting to the target",
            lambda: open_.enter_context(
                Session(target, client_name=f"mirror-{config.name}", expects_cluster=True)
            ),
        )
        schemas = None
        if zookeeper is not None:
            there = patience.retry(
                "Connecting to the source",
                lambda: open_.enter_context(
                    Session(zookeeper, client_name="mirror-schemas", expects_cluster=True)
                ),
            )
            schemas = SchemaCopier(there, session)
        yield open_.enter_context(
            Mirror(config, source=source, target=cluster, session=session, schemas=schemas)
        )
