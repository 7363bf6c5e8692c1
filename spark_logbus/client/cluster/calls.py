"""Single calls: to one broker, or to whichever answers."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from spark_logbus.client.cluster.bootstrap import Bootstrap
from spark_logbus.client.config import ClientConfig
from spark_logbus.errors import BrokerUnavailableError, LogbusError, RequestTimeoutError
from spark_logbus.model import BrokerAddress
from spark_logbus.protocol import Api, Message
from spark_logbus.retry import Deadline
from spark_logbus.wire.pool import ConnectionPool

M = TypeVar("M", bound=Message)


class BrokerCalls:
    """Calls without retries. Thread-safe."""

    def __init__(
        self,
        pool: ConnectionPool,
        config: ClientConfig,
        bootstrap: Bootstrap,
        rebootstrap: Callable[[], Bootstrap] | None,
    ) -> None:
        self._pool = pool
        self._config = config
        self.bootstrap = bootstrap
        self._rebootstrap = rebootstrap
        self._silent: set[tuple[str, int]] = set()  # did not answer when last asked

    def call(
        self,
        address: BrokerAddress,
        api: Api,
        message: Message,
        kind: type[M],
        *,
        deadline: Deadline,
    ) -> M:
        deadline = deadline.sooner_ms(self._config.request_timeout_ms)
        with self._pool.lease(address, deadline) as connection:
            return connection.send(api, message).result(kind, deadline)

    def note_silence(self, address: BrokerAddress) -> None:
        """Note that a broker does not answer: others are asked before it."""
        self._silent.add((address.host, address.port))

    def ask_any(
        self,
        brokers: Sequence[BrokerAddress],
        api: Api,
        message: Message,
        kind: type[M],
        *,
        deadline: Deadline,
        good: Callable[[M], bool],
        most_ms: float | None = None,
        silent: list[LogbusError] | None = None,
    ) -> M:
        """The first good response, else the last response, else an error.

        Asks ``brokers`` first, in any order, those that were silent lately last; then those of
        the bootstrap list, and when none of them answers at all, those of a new one. While there
        are others left to ask, a broker has ``most_ms`` to answer. ``silent`` gets the errors of
        those that were asked and gave no answer, whatever they have done.
        """
        failures: list[str] = []
        answers: list[M] = []
        tried: set[tuple[str, int]] = set()
        for addresses in self._rounds(brokers, answers):
            by_place = {(one.host, one.port): one for one in reversed(addresses)}
            left = [
                one
                for one in addresses
                if one is by_place[one.host, one.port] and (one.host, one.port) not in tried
            ]
            left.sort(key=lambda one: (one.host, one.port) in self._silent)
            while left:
                address = left.pop(0)
                place = (address.host, address.port)
                tried.add(place)
                # A broker that hangs must not use up the time of those that do not.
                share_ms = deadline.remaining_s * 1000 / (len(left) + 1)
                if most_ms is not None and left:
                    share_ms = min(share_ms, most_ms)
                patience = deadline.sooner_ms(min(share_ms, 2 * self._config.connect_timeout_ms))
                try:
                    answer = self.call(address, api, message, kind, deadline=patience)
                except LogbusError as error:
                    if not error.retriable:
                        raise
                    if isinstance(error, RequestTimeoutError):
                        self._silent.add(place)
                    failures.append(str(error))
                    if silent is not None:
                        silent.append(error)
                    continue
                self._silent.discard(place)
                if good(answer):
                    return answer
                answers.append(answer)
        if not answers:
            sentences = (f"{each[:1].upper()}{each[1:]}" for each in failures)
            raise BrokerUnavailableError(" ".join(["No broker answers.", *sentences]))
        return answers[-1]

    def _rounds(
        self, brokers: Sequence[BrokerAddress], answers: Sequence[Message]
    ) -> Iterator[list[BrokerAddress]]:
        yield [*random.sample(brokers, len(brokers)), *self.bootstrap.brokers]
        if self._rebootstrap is not None and not answers:
            self.bootstrap = self._rebootstrap()
            yield list(self.bootstrap.brokers)
