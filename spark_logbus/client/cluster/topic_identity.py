"""Tells a topic from a later one of its name, which has another id."""

from __future__ import annotations

from spark_logbus.client.cluster.cluster import Cluster
from spark_logbus.errors import TopicRecreatedError, UnknownTopicError
from spark_logbus.protocol import MetadataResponse
from spark_logbus.retry import Deadline


def require_topic(cluster: Cluster, name: str, topic_id: str, deadline: Deadline) -> None:
    """Return while a broker knows the topic ``name`` by that id; asks none while it is known.

    Raises TopicRecreatedError when all brokers that answer know another topic of that name, and
    UnknownTopicError when they know none.
    """
    if cluster.topic(name, deadline).topic_id == topic_id:
        return
    # A broker hears of a new topic a moment after the one that made it, so a reader may be ahead
    # of a broker as well as behind it: only the word of all is final, as it is in ``_learn``.
    ids: set[str] = set()

    def is_meant(response: MetadataResponse) -> bool:
        ids.update(info.topic_id for info in response.topics if info.name == name)
        return topic_id in ids

    cluster.ask_metadata([name], deadline=deadline, good=is_meant)
    if topic_id in ids:
        return
    if not ids:
        raise UnknownTopicError(f"The topic {name} with the id {topic_id} was deleted.")
    raise recreated(name, expected=topic_id, actual=", ".join(sorted(ids)))


def recreated(name: str, *, expected: str, actual: str) -> TopicRecreatedError:
    return TopicRecreatedError(
        f"The topic {name} with the id {expected} was deleted; the one of that name now has the "
        f"id {actual}. Positions in the old one say nothing about the new one: choose where to "
        "begin there."
    )
