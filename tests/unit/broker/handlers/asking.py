"""A connection's requests to all handlers, over a test's logs."""

from __future__ import annotations

from types import SimpleNamespace

from spark_logbus.broker.handlers.work_executor import WorkExecutor
from spark_logbus.network import Answer, DelayedResponse, Response
from spark_logbus.protocol import (
    PROTOCOL_VERSION,
    Api,
    Frame,
    Message,
    decode_response,
    encode_request,
)
from tests.fakes.broker_parts import Logs
from tests.fakes.handlers import Peer, dispatcher_over
from tests.helpers import wait_until


class Asking:
    def __init__(self, logs: Logs) -> None:
        self.logs = logs
        self.metadata_cache = SimpleNamespace(look_up_brokers=list, brokers=[], topics={})
        self.peer = Peer()
        self.executor = WorkExecutor("ZooKeeper", clock=logs.clock, max_wait_ms=60_000)
        self.dispatcher = dispatcher_over(logs, self.executor, metadata_cache=self.metadata_cache)

    def frame(self, frame: Frame) -> Answer:
        return self.dispatcher.dispatch(self.peer.as_connection(), frame)

    def send(self, api: Api, message: Message, payload: bytes = b"") -> Answer:
        data = memoryview(bytearray(payload))
        return self.frame(Frame(api, PROTOCOL_VERSION, 1, encode_request(message), data))

    def call(self, api: Api, message: Message) -> Message:
        answer = self.send(api, message)
        response = wait_until(answer.poll) if isinstance(answer, DelayedResponse) else answer
        assert isinstance(response, Response)
        return decode_response(api, response.header)
