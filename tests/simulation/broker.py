"""A broker of the simulation: the real one, by its own composition root, without threads and
sockets.

What its threads do is called by the simulation, step by step. Replaced are: the ZooKeeper session
(see ``zookeeper``), watches, the lease, the network, the disk, the clock, and waiting, in which
others act.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self, TypeVar, cast
from unittest import mock

from spark_logbus.broker import publisher
from spark_logbus.broker.config import BrokerConfig, ReplicationConfig
from spark_logbus.broker.handlers.handler import RequestContext
from spark_logbus.broker.metadata_cache import MetadataCache, TopicsImage
from spark_logbus.broker.replica.states import LeaderPartition
from spark_logbus.broker.server import Broker
from spark_logbus.coordination import paths
from spark_logbus.coordination.payloads import BrokerPayload, encode
from spark_logbus.errors import (
    BrokerUnavailableError,
    CoordinationError,
    LogbusError,
    NotLeaderError,
)
from spark_logbus.log import LogDirectory, PartitionLog
from spark_logbus.model import BrokerAddress, TopicPartition
from spark_logbus.network import Answer, DelayedResponse, Response
from spark_logbus.protocol import Api, Message, ReplicateRequest, decode_response
from spark_logbus.record import split
from spark_logbus.retry import Deadline
from spark_logbus.threads import Periodic
from spark_logbus.wire.config import ConnectionConfig
from tests.fakes.disk import SimulatedDisk, Survival
from tests.fakes.executor import InlineExecutor
from tests.fakes.handlers import Peer
from tests.fakes.log_directory import ManualFlusher
from tests.simulation.zookeeper import Entry, SimulatedSession

if TYPE_CHECKING:
    from tests.simulation.world import World

T0 = TopicPartition("t", 0)
TOPIC_ID = "a" * 32
_LAG_MS = 3_000
_M = TypeVar("_M", bound=Message)


class Record(NamedTuple):
    """A record batch in a log, known by its producer's id and its number there."""

    end: int
    producer: int
    sequence: int


class Node:
    """One broker's machine: its disk, and the process that runs on it or not."""

    def __init__(self, broker_id: int, world: World) -> None:
        self.id = broker_id
        self.world = world
        self.disk = SimulatedDisk()
        self.cut = False  # from ZooKeeper
        self.log_id = ""  # on the disk, as far as that is known
        self.process: Process | None = None
        self.starts = False

    def start(self) -> None:
        """Starts the broker, once ZooKeeper knows of no earlier run of it."""
        if self.process is not None or self.starts:
            return
        if (entry := self.world.tree.nodes.get(paths.broker(self.id))) is not None:
            self.world.tree.expire(entry.ephemeralOwner)
        self.starts = True
        try:
            self.process = Process(self)
        except CoordinationError:
            self.disk.kill()  # ZooKeeper is away
        finally:
            self.starts = False

    def stop(self, end: Callable[[SimulatedDisk], None]) -> None:
        """Ends the process; what it does just now is not gone on with."""
        if self.process is not None:
            self.process.is_dead = True
            self.process = None
        end(self.disk)

    def kill(self) -> None:
        self.stop(SimulatedDisk.kill)

    def cut_power(self, survival: Survival) -> None:
        self.stop(lambda disk: disk.crash(survival))

    def empty_disk(self) -> None:
        self.kill()
        self.disk, self.log_id = SimulatedDisk(), ""


class Process:
    """One run of a broker."""

    def __init__(self, node: Node) -> None:
        self.node, self.world = node, node.world
        self.is_dead = False
        self.busy: set[str] = set()  # its threads that are in the middle of something
        self._read: tuple[object, dict[int, Record]] = (None, {})
        self.registered_in = 0
        with node.world.building(self):
            config = BrokerConfig(
                id=node.id,
                data_dir=Path("/data"),
                replication=ReplicationConfig(lag_max_ms=_LAG_MS),
            )
            self.broker = broker = Broker(config, clock=node.world.clock, files=node.disk)
        self.session = cast(SimulatedSession, broker._session)
        self.cache = cast(SimulatedCache, broker._metadata_cache)
        self.flusher = cast(ManualFlusher, broker._logs._flusher)
        broker._followers._told = Waits(node.world)
        broker._publisher.promises._lock = cast(threading.Lock, Uninterrupted(node.world))
        broker._logs.open()
        with self.world.acting(self):
            self.register()
            self.cache.hear_of_brokers()
            self.cache.hear_of_topics()

    def register(self) -> None:
        """Makes the broker's node in this session, as ``BrokerIdentity`` does."""
        if self.session.is_lost:
            self.session.renew()
        if self.registered_in != self.session.session_id:
            payload = BrokerPayload(host="h", port=9, started_us=1, version="1", features=3)
            path = paths.broker(self.node.id)
            self.world.tree.put(path, encode(payload), owner=self.session.session_id)
            self.broker._replica_manager.check_epochs()
            self.registered_in = self.session.session_id

    # -- what its threads do --------------------------------------------------------------

    def tick(self) -> None:
        """Hears what ZooKeeper has to tell, and goes by it."""
        if not self.node.cut:
            self.register()
            self.cache.hear_of_brokers()
            self.cache.hear_of_states()
        self.broker._replica_manager._apply_newest()
        self.broker._following._look()

    def fetch(self) -> None:
        for fetcher in list(self.broker._following._fetchers.values()):
            fetcher._round()

    def look_at_members(self) -> None:
        self.broker._in_sync.thread._work()

    def flush(self) -> None:
        self.flusher.run()

    def note_ends(self) -> None:
        self.broker._flushed_ends._note_or_warn()

    def follow_up(self) -> None:
        self.broker._publisher._look_or_warn()

    def hand_over(self) -> None:
        led = self.led
        members = [] if led is None else self.broker._members_of(led)[1:]
        if members:
            self.broker._hand_overs.ask(T0, self.world.random.choice(members), within_s=1.0)
        self.settle()

    def settle(self) -> None:
        """Has the hand-overs settled of which nobody knows whether they were done."""
        self.broker._hand_overs._look()

    # -- what is looked at ----------------------------------------------------------------

    @property
    def log(self) -> PartitionLog | None:
        return self.broker._logs.get(T0)

    @property
    def led(self) -> LeaderPartition | None:
        return self.broker._replica_manager.find(T0)

    @property
    def high_watermark(self) -> int:
        """The end of what consumers see here; 0 where it is not served."""
        led = self.led
        try:
            log = led.log if led else self.broker._fetches._followed.log_of(T0, TOPIC_ID)
        except NotLeaderError:
            return 0
        return log.ends().high_watermark

    @property
    def shown(self) -> tuple[object, ...]:
        """Returns all that decides on what consumers see of the log, besides the log itself."""
        replica = self.broker._replica_manager._replicas.get(T0)
        return replica, self.cache._states, self.node.cut, self.session.is_lost

    def records(self) -> dict[int, Record]:
        """Returns all that is in the log, flushed or not, by offset."""
        log = self.log
        if log is None:
            return {}
        state = (log, log._writer.tail, log._writer.truncations)
        if self._read[0] == state:
            return self._read[1]
        found: dict[int, Record] = {}
        offset = log.first_offset
        end = min([each.start for each in log.damaged], default=log.ends().log_end_offset)
        while offset < end and (piece := log.read_as_replica(offset, max_bytes=1 << 20)):
            for header, _ in split(piece.read(), allow_tail=False):
                offset = header.next_offset
                found[header.base_offset] = Record(offset, header.producer_id, header.base_sequence)
        self._read = (state, found)
        return found

    def ask(
        self, api: Api, request: Message, payload: bytes = b"", peer: Peer | None = None
    ) -> Answer:
        """Has a request handled, of a connection with that ``peer``."""
        origin = (peer or Peer()).as_connection()
        handle = self.broker._requests._handles[api]
        return handle(request, RequestContext(origin, memoryview(bytearray(payload))))


# -- what is replaced -------------------------------------------------------------------------


class SimulatedCache(MetadataCache):
    """The real cache, which hears of changes when the simulation says so."""

    def hear_of_brokers(self) -> None:
        brokers = self._entries(paths.BROKERS, *map(paths.broker, (1, 2, 3)))
        if self._heard.get("brokers") != brokers:
            self._brokers_changed(self._broker_registry.live())
            self._heard["brokers"] = brokers

    def hear_of_topics(self) -> None:
        self._topics = self._topic_registry.some([T0.topic])
        self._notify(TopicsImage(self._topics, self._session.session_id))

    def hear_of_states(self) -> None:
        states = self._entries(paths.partitions(T0.topic))
        if self._heard.get("states") != states:
            self._states = self._states_now(self._topics, [T0.topic], look_for_missing=True)
            self._notify_states({T0.topic})
            self._heard["states"] = states

    def _entries(self, *watched: str) -> list[Entry | None]:
        """Returns what is watched; a change of it is what ZooKeeper gives notice of."""
        nodes = cast(SimulatedSession, self._session).tree.nodes
        return [nodes.get(each) for each in watched]

    @cached_property
    def _heard(self) -> dict[str, list[Entry | None]]:
        return {}


class SimulatedLease:
    """Stands in for ``Lease``: the id is certain while its node is there, and while ZooKeeper is
    away for this broker."""

    refusal = None

    def __init__(self, process: Process) -> None:
        self._process = process

    def current(self) -> bool:
        process = self._process
        is_ours = process.registered_in == process.session.session_id
        return process.node.cut or (is_ours and not process.session.is_lost)

    def session_is(self, *_: object) -> None:
        pass

    when_decided = session_is


class Uninterrupted:
    """A lock within which nobody else acts: who waits for it could not go on in a nested step."""

    def __init__(self, world: World) -> None:
        self._world = world

    def __enter__(self) -> Self:
        self._world.uninterrupted += 1
        return self

    def __exit__(self, *_: object) -> None:
        self._world.uninterrupted -= 1


class Waits(threading.Condition):
    """A condition, for which others act."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self._world = world

    def wait_for(self, predicate: Callable[[], Any], timeout: float | None = None) -> Any:
        return self._world.wait_for(predicate, timeout or 0.0)


class InlineWork:
    """Stands in for ``WorkExecutor``."""

    def __init__(self, *_: object, **__: object) -> None:
        pass

    def run(self, work: Callable[[], Response], *, key: Hashable = None) -> Response:
        return work()


class _Inline(InlineExecutor):
    def __init__(self, *_: object, **__: object) -> None:
        pass


class _NoTimer:
    daemon = True

    def __init__(self, *_: object) -> None:
        pass

    def start(self) -> None:
        pass

    cancel = start


class Connection:
    """Stands in for ``BrokerConnection``, from one broker to another."""

    def __init__(self, world: World, source: int, address: BrokerAddress) -> None:
        self.address = address
        self.failure: LogbusError | None = None
        self._world, self._link = world, (source, address.broker_id)
        self._peer = Peer()
        self._process = world.nodes[address.broker_id].process
        self.require()

    def close(self, reason: LogbusError | None = None) -> None:
        self.failure = self.failure or BrokerUnavailableError("The connection was closed.")

    interrupt = close

    def require(self) -> Process:
        process = self._world.nodes[self.address.broker_id].process
        if process is None or process is not self._process or self._link in self._world.broken:
            self.failure = BrokerUnavailableError(f"{self.address} does not answer.")
        if self.failure is not None or process is None:
            raise (self.failure or BrokerUnavailableError("")).again()
        return process

    def send(self, api: Api, request: ReplicateRequest) -> Pending:
        self.require()
        return Pending(self, self._world, self._peer, api, request)


class Pending:
    """Stands in for ``PendingResponse``. The leader answers at once, and others act meanwhile."""

    def __init__(
        self, connection: Connection, world: World, peer: Peer, api: Api, request: ReplicateRequest
    ) -> None:
        self._connection, self._world, self._peer = connection, world, peer
        self._api, self._request = api, request
        self.payload = memoryview(b"")

    def starts(self, _: Deadline) -> bool:
        """Tells that the answer begins to come."""
        return True

    def result(self, kind: type[_M], _: Deadline, *, begun: Deadline | None = None) -> _M:
        self._world.pause()
        self._request.max_wait_ms = 0
        process = self._connection.require()
        answer = process.ask(self._api, self._request, peer=self._peer)
        response = answer.poll() if isinstance(answer, DelayedResponse) else answer
        assert isinstance(response, Response)
        self.payload = memoryview(b"".join(each.read() for each in response.slices))
        self._world.pause()
        self._connection.require()
        if self._world.loses_reply():
            self._connection.close()
            raise BrokerUnavailableError("The connection broke before the answer came.")
        message = decode_response(self._api, response.header)
        assert isinstance(message, kind)
        return message


@contextmanager
def replacements(world: World) -> Iterator[None]:
    """Puts what is replaced in its place, for all brokers."""

    class Flushes(publisher._Flushes):
        def wait(self, timeout_s: float) -> dict[TopicPartition, LogbusError | None]:
            world.wait_for(lambda: not self._missing, timeout_s)
            return super().wait(0.0)

    def connect(
        address: BrokerAddress, config: ConnectionConfig, _: Deadline, **__: object
    ) -> Connection:
        return Connection(world, int(config.client_id.rpartition("-")[2]), address)

    replica, server = "spark_logbus.broker.replica", "spark_logbus.broker.server"
    places: dict[str, Any] = {
        f"{server}.Session": lambda *_, **__: world.new_session(),
        f"{server}.Lease": lambda **_: SimulatedLease(world.built[-1]),
        f"{server}.MetadataCache": SimulatedCache,
        f"{server}.LogDirectory": lambda *args, **named: LogDirectory(
            *args, flusher=ManualFlusher(), **named
        ),
        f"{server}.WorkExecutor": InlineWork,
        f"{server}.free_bytes": lambda _: 1 << 40,
        "spark_logbus.log.partition_directories.ThreadPoolExecutor": _Inline,
        f"{replica}.hand_over.ThreadPoolExecutor": _Inline,
        f"{replica}.hand_over.threading.Timer": _NoTimer,
        f"{replica}.fetcher.connect": connect,
        f"{replica}.fetcher.Poller": mock.Mock,
        "spark_logbus.broker.publisher._Flushes": Flushes,
        "secrets.token_hex": lambda count: world.random.randbytes(count).hex(),
    }
    with ExitStack() as stack:
        for place, replacement in places.items():
            stack.enter_context(mock.patch(place, replacement))
        stack.enter_context(mock.patch.object(Periodic, "start"))
        yield
