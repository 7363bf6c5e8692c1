"""Clients of the simulation: producers that repeat until they hear, and a writer of atomic writes.

A producer has one record batch under way, and sends it again until it is acknowledged. The writer
stages, prepares, decides and publishes, one write after the other; it gives up now and then.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from spark_logbus.errors import LogbusError
from spark_logbus.network import Answer, DelayedResponse, Response
from spark_logbus.protocol import (
    Api,
    AppendPartition,
    AppendRequest,
    AppendResponse,
    DecideRequest,
    DecideResponse,
    Decision,
    Message,
    PrepareRequest,
    PublishRequest,
    ShareResponse,
    StageRequest,
    TopicShares,
    WriteShare,
    decode_response,
)
from spark_logbus.record.stage_id import stage_id
from tests.builders.producers import batch
from tests.simulation.broker import T0, TOPIC_ID, Process

if TYPE_CHECKING:
    from tests.simulation.world import World

_TIMEOUT_MS = 5_000
_BATCHES = 2  # that a write stages


class _Request:
    """A request that is under way at a broker, led there in ``epoch``."""

    def __init__(self, process: Process, api: Api, answer: Answer) -> None:
        self.process, self._api, self._answer = process, api, answer
        self.epoch = -1 if process.led is None else process.led.leader_epoch

    def outcome(self) -> Message | LogbusError | None:
        """Returns the answer; None as long as it is not there."""
        if self.process.is_dead or not isinstance(self._answer, (DelayedResponse, Response)):
            return LogbusError("The connection broke, or nothing was begun.")
        response = self._answer
        if isinstance(response, DelayedResponse):
            found = response.poll()
            if found is None:
                return None
            response = found
        try:
            return decode_response(self._api, response.header)
        except LogbusError as error:
            return error


class Client:
    """Asks brokers that lead, or that think so."""

    def __init__(self, world: World) -> None:
        self.world = world
        self._under_way: _Request | None = None

    @property
    def asks(self) -> Process | None:
        """The broker at which it has something under way."""
        return None if self._under_way is None else self._under_way.process

    def act(self) -> None:
        """Takes the next step."""
        raise NotImplementedError

    def _send(self, api: Api, request: Message, payload: bytes = b"") -> _Request | None:
        leaders = [each for each in self.world.processes() if each.led is not None]
        if not leaders:
            return None
        return self._send_to(self.world.random.choice(leaders), api, request, payload)

    def _send_to(
        self, process: Process, api: Api, request: Message, payload: bytes = b""
    ) -> _Request | None:
        led = process.led
        try:
            found = _Request(process, api, process.ask(api, request, payload))
        except LogbusError:
            return None
        if led is not None:
            found.epoch = led.leader_epoch
        return found

    def _appended(self) -> int | None:
        """Returns where what was sent stands, if that was acknowledged; ends what has failed."""
        if self._under_way is None:
            return None
        outcome = self._under_way.outcome()
        if outcome is None:
            return None
        self._under_way = None
        if not isinstance(outcome, AppendResponse) or outcome.results[0].error is not None:
            return None
        return outcome.results[0].base_offset


class Producer(Client):
    """Has one record batch after the other acknowledged as replicated."""

    def __init__(self, world: World, producer_id: int) -> None:
        super().__init__(world)
        self.id = producer_id
        self.sequence = 0

    def act(self) -> None:
        request = self._under_way
        offset = self._appended()
        if offset is not None and request is not None:
            self.world.witness.acknowledged(
                self.id, self.sequence, offset, broker=request.process.node.id, epoch=request.epoch
            )
            self.sequence += 1
        elif self._under_way is None:
            data = bytes(batch(self.sequence, producer=self.id))
            append = AppendRequest(
                "replicated", _TIMEOUT_MS, [AppendPartition(T0.topic, 0, len(data))]
            )
            self._under_way = self._send(Api.APPEND, append, data)


class Writer(Client):
    """Commits version after version."""

    NAME = "w"

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.write, self.version = 1, 0
        self.settled: int | None = None
        self.is_decided = False
        self._staged = 0
        self._promise: tuple[int, str] | None = None

    def act(self) -> None:
        if self._staged < _BATCHES:
            self._stage()
        elif self.is_decided:
            self._publish()
        elif self._promise is None:
            self._prepare()
        else:
            self._decide()

    def _begin_anew(self) -> None:
        self.write += 1
        self._staged, self._promise, self.is_decided, self._under_way = 0, None, False, None

    def _stage(self) -> None:
        if self._appended() is not None:
            self._staged += 1
        elif self._under_way is None:
            if self.world.random.random() < 0.1:
                self._begin_anew()
            data = bytes(batch(self._staged, producer=stage_id(self.write, 1)))
            partitions = [AppendPartition(T0.topic, 0, len(data))]
            stage = StageRequest(_TIMEOUT_MS, partitions, writer=self.NAME)
            self._under_way = self._send(Api.STAGE, stage, data)

    @property
    def _shares(self) -> list[WriteShare]:
        return [WriteShare(T0.topic, TOPIC_ID, 0, _BATCHES)]

    def _outcome(self, request: _Request | None) -> Message | LogbusError | None:
        return None if request is None else request.outcome()

    def _prepare(self) -> None:
        request = PrepareRequest(self.write, "1", self._shares, writer=self.NAME, anew=True)
        found = self._outcome(self._send(Api.PREPARE, request))
        if isinstance(found, ShareResponse) and found.results[0].error is None:
            self._promise = found.broker_id, found.promise
        elif self.world.random.random() < 0.3:
            self._begin_anew()

    def _decide(self) -> None:
        assert self._promise is not None
        decision = Decision(
            self.version, self.write, "1", {T0.topic: TopicShares(TOPIC_ID, {0: _BATCHES})}
        )
        request = DecideRequest(
            self.NAME, "", decision, settled=self.settled, promises=dict([self._promise])
        )
        processes = self.world.processes()
        if not processes:
            return
        process = self.world.random.choice(processes)
        found = self._outcome(self._send_to(process, Api.DECIDE, request))
        if isinstance(found, DecideResponse) and found.outcome == "decided":
            self.is_decided = True
        elif not isinstance(found, DecideResponse) and self.world.random.random() < 0.5:
            self._promise = None  # it may be decided all the same, which is the next answer then

    def _publish(self) -> None:
        request = PublishRequest(self.write, "1", self._shares, writer=self.NAME)
        found = self._outcome(self._send(Api.PUBLISH, request))
        if isinstance(found, ShareResponse) and found.results[0].error is None:
            self.settled, self.version = self.write, self.version + 1
            self._begin_anew()
