"""Waits for answers of brokers that may be stopped or cut off, and so keep their connections.

Another broker leads by then, as soon as ZooKeeper has given up the silent one, which is long before
the request's own timeout. So while no answer comes, the other brokers are asked now and then.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final, TypeVar

from spark_logbus.client.cluster.cluster import Cluster
from spark_logbus.errors import RequestTimeoutError
from spark_logbus.model import BrokerAddress, TopicPartition
from spark_logbus.protocol import Message
from spark_logbus.retry import Deadline
from spark_logbus.wire.connection import PendingResponse

#: From when an answer is due until its broker counts as silent.
ANSWER_S: Final = 1.0
#: Between two questions who leads what a silent broker led; and so many times what they take.
ASK_EVERY_S: Final = 1.0
ASK_SHARE: Final = 3

M = TypeVar("M", bound=Message)


def result_while_led(
    cluster: Cluster,
    pending: PendingResponse,
    kind: type[M],
    deadline: Deadline,
    *,
    source: BrokerAddress,
    topic_partitions: Collection[TopicPartition],
    due_ms: float = 0,
    begun: Deadline | None = None,
) -> M:
    """Returns the response as ``PendingResponse.result`` does, of a request about the
    ``topic_partitions`` to their leader, or a follower, that it may answer after ``due_ms``.

    Raises RequestTimeoutError, too, when another broker leads one of them while nothing comes; the
    connection is of no use then, as the answer may still come.
    """
    patience_s = due_ms / 1000 + ANSWER_S
    while not pending.starts(deadline.sooner_ms(patience_s * 1000)) and not deadline.expired:
        began = cluster.clock.monotonic()
        elsewhere = cluster.led_elsewhere(topic_partitions, source)
        if elsewhere:
            raise RequestTimeoutError(
                f"{source} has not answered a {pending.api.name.lower()} request, and "
                f"{elsewhere[0]} is led by another broker by now."
            )
        patience_s = max(ASK_EVERY_S, ASK_SHARE * (cluster.clock.monotonic() - began))
    return pending.result(kind, deadline, begun=begun)
