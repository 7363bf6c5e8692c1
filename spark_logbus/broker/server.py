"""One broker: builds its parts, and starts and stops them in order."""

from __future__ import annotations

import logging
import threading
from pathlib import Path

from spark_logbus import __version__
from spark_logbus.broker.appends import AppendHandler
from spark_logbus.broker.config import BrokerConfig
from spark_logbus.broker.fetches import FetchHandler, WaitingFetches
from spark_logbus.broker.metadata import ClusterImage
from spark_logbus.broker.network import Network
from spark_logbus.broker.offload import Offload
from spark_logbus.broker.partitions import Partitions
from spark_logbus.broker.requests import RequestHandler
from spark_logbus.clock import Clock, SystemClock
from spark_logbus.coordination import BrokerRegistry, Session, TopicRegistry
from spark_logbus.errors import ConfigError, LogbusError, StorageError
from spark_logbus.log import LogDirectory
from spark_logbus.model import BrokerAddress

log = logging.getLogger(__name__)

_MAINTAIN_S = 0.5
_ID_FILE = "broker.id"
_PORT_FILE = "broker.port"


class Broker:
    """The composition root. ``start`` and ``stop`` are called once each, by one thread.

    Start: logs are recovered, the port is bound, ZooKeeper is joined, then requests are served.
    Stop: leave ZooKeeper, refuse new requests, finish those under way, close the logs with a
    clean marker.
    """

    def __init__(self, config: BrokerConfig, *, clock: Clock | None = None) -> None:
        clock = clock or SystemClock()
        self.config = config
        self._clock = clock
        self._logs = LogDirectory(config.data_dir, defaults=config.log, clock=clock)
        self._session = Session(
            config.zookeeper,
            client_name=f"broker-{config.id}",
            session_timeout_ms=config.zookeeper_session_ms,
        )
        self._registry = BrokerRegistry(self._session)
        topics = TopicRegistry(self._session)
        waiting = WaitingFetches()
        self._partitions = Partitions(config.id, logs=self._logs, topics=topics, moved=waiting.wake)
        self._image = ClusterImage(
            self._session,
            brokers=BrokerRegistry(self._session),
            topics=TopicRegistry(self._session),
        )
        network = config.network
        self._offload = Offload(clock=clock, max_wait_ms=network.max_wait_ms)
        self._requests = RequestHandler(
            config,
            partitions=self._partitions,
            image=self._image,
            topics=topics,
            appends=AppendHandler(self._partitions, clock=clock, max_wait_ms=network.max_wait_ms),
            fetches=FetchHandler(
                self._partitions,
                waiting,
                clock=clock,
                max_wait_ms=network.max_wait_ms,
                max_fetch_bytes=network.max_fetch_bytes,
            ),
            offload=self._offload,
        )
        self._network: Network | None = None
        self._stopping = threading.Event()
        self._maintenance = threading.Thread(target=self._maintain, name="maintenance", daemon=True)

    @property
    def address(self) -> BrokerAddress:
        """Where clients reach this broker; known after ``start``."""
        assert self._network is not None, "the broker has not been started"
        host = self.config.advertised_host or self.config.host
        return BrokerAddress(self.config.id, host, self._network.port, self._network.local_socket)

    def start(self) -> None:
        config = self.config
        config.data_dir.mkdir(parents=True, exist_ok=True)
        self._logs.open()
        try:
            _check_identity(config.data_dir, config.id)
            self._network = self._listen()
            self._session.start()
            self._registry.register(self.address, version=__version__)
            self._image.start()
            self._partitions.start()
            self._network.start(self._requests.handle)
            self._maintenance.start()
        except BaseException:
            self.stop()
            raise
        log.info("Broker %d is ready at %s:%d, data in %s.", config.id, self.address.host,
                 self.address.port, config.data_dir)  # fmt: skip

    def _listen(self) -> Network:
        """Bind the port; port 0 means the one of the last run if it is free, else any."""
        config = self.config
        remembered = config.data_dir / _PORT_FILE
        ports = [config.port]
        if config.port == 0 and remembered.exists():
            ports.insert(0, int(remembered.read_text()))
        for port in ports:
            try:
                network = Network(
                    host=config.host, port=port, config=config.network, clock=self._clock
                )
            except StorageError:
                if port == ports[-1]:
                    raise
                log.warning("Port %d of the last run is taken, choosing another.", port)
            else:
                remembered.write_text(f"{network.port}\n")
                return network
        raise AssertionError("unreachable: the last port either bound or raised")

    def stop(self) -> None:
        """Ordered shutdown; every step is tried even when an earlier one failed."""
        self._stopping.set()
        self._requests.shutting_down = True
        steps = [self._registry.deregister, self._partitions.stop, self._image.stop]
        if self._network is not None:
            steps += [self._network.stop_accepting, self._drain, self._network.stop]
        steps += [self._offload.stop, self._join_maintenance, self._session.close, self._logs.close]
        for step in steps:
            try:
                step()
            except (LogbusError, OSError) as error:
                log.error("While stopping: %s", error)
        log.info("Broker %d has stopped.", self.config.id)

    def _drain(self) -> None:
        assert self._network is not None
        deadline = self._clock.monotonic() + self.config.network.drain_timeout_ms / 1000
        pause = threading.Event()
        while self._network.waiting() and self._clock.monotonic() < deadline:
            pause.wait(0.02)

    def _join_maintenance(self) -> None:
        if self._maintenance.is_alive():
            self._maintenance.join(timeout=30)

    def _maintain(self) -> None:
        while not self._stopping.wait(_MAINTAIN_S):
            try:
                self._logs.maintain()
            except LogbusError as error:
                log.error("Maintenance of the logs failed and will be tried again: %s", error)


def _check_identity(data_dir: Path, broker_id: int) -> None:
    """A data directory belongs to one broker id; serving it under another would lose its logs."""
    path = data_dir / _ID_FILE
    if path.exists():
        known = path.read_text().strip()
        if known != str(broker_id):
            raise ConfigError(
                f"The data directory {data_dir} belongs to broker {known}, but the configuration "
                f"says id = {broker_id}; use that id or another data_dir."
            )
        return
    path.write_text(f"{broker_id}\n")
