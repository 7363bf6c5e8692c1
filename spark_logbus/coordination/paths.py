"""Every ZooKeeper path of logbus, made and parsed here and nowhere else.

Paths are relative to the chroot. Names are checked before they become part of a path, so
that no topic or group can reach outside its own node.
"""

from __future__ import annotations

from urllib.parse import quote, unquote

from spark_logbus.errors import InvalidRequestError
from spark_logbus.model import TopicPartition, check_name

BROKERS = "/brokers/ids"
DRAINED = "/brokers/drained"
TOPICS = "/brokers/topics"
CONSUMERS = "/consumers"
SCHEMAS = "/schemas"
SCHEMA_SETTINGS = f"{SCHEMAS}/settings"
SCHEMA_IDS = f"{SCHEMAS}/ids"
SCHEMA_CONTENTS = f"{SCHEMAS}/contents"
SCHEMA_SUBJECTS = f"{SCHEMAS}/subjects"
TRANSACTIONS = "/transactions"
WRITERS = f"{TRANSACTIONS}/writers"
PENDING_WRITES = f"{TRANSACTIONS}/pending"
PROMISES = f"{TRANSACTIONS}/promises"
LOCKS = "/locks"
MIRRORS = "/mirrors"
SECURITY = "/security"
USERS = f"{SECURITY}/users"
ACLS = f"{SECURITY}/acls"
TOKEN_KEYS = f"{SECURITY}/token-keys"

MAX_WRITER_LENGTH = 500
MAX_USER_LENGTH = 200

_EPOCH_DIGITS = 10  # so that names sort as numbers do


def number_of(name: str) -> int | None:
    """The broker id, partition or rewind epoch that a node's name stands for, or None."""
    return int(name) if name.isascii() and name.isdigit() else None


def broker(broker_id: int) -> str:
    if broker_id < 0:
        raise InvalidRequestError(f"A broker id is 0 or more, got {broker_id}.")
    return f"{BROKERS}/{broker_id}"


def drained_broker(broker_id: int) -> str:
    """Mark of a broker that is being drained."""
    if broker_id < 0:
        raise InvalidRequestError(f"A broker id is 0 or more, got {broker_id}.")
    return f"{DRAINED}/{broker_id}"


def topic(name: str) -> str:
    return f"{TOPICS}/{check_name('topic', name)}"


def partitions(name: str) -> str:
    return f"{topic(name)}/partitions"


def partition(topic_partition: TopicPartition) -> str:
    return f"{partitions(topic_partition.topic)}/{_partition(topic_partition)}"


def partition_state(topic_partition: TopicPartition) -> str:
    return f"{partition(topic_partition)}/state"


def lock(name: str) -> str:
    """Lock names are free text (a warehouse's address), so they are quoted into one node name."""
    return f"{LOCKS}/{quote(name, safe='')}"


def lock_of(node_name: str) -> str | None:
    """The lock that a node below ``LOCKS`` is of; None of a node that is not logbus's."""
    name = unquote(node_name)
    try:
        return name if quote(name, safe="") == node_name else None
    except UnicodeEncodeError:
        return None


def writer(writer_id: str) -> str:
    """Writers' ids are free text (an application's name), so they are quoted."""
    return f"{WRITERS}/{_quoted_writer(writer_id)}"


def pending_write(writer_id: str) -> str:
    return f"{PENDING_WRITES}/{_quoted_writer(writer_id)}"


def promise(broker_id: int) -> str:
    if broker_id < 0:
        raise InvalidRequestError(f"A broker id is 0 or more, got {broker_id}.")
    return f"{PROMISES}/{broker_id}"


def writer_of(name: str) -> str | None:
    """The writer that a node below ``WRITERS`` or ``PENDING_WRITES`` is of; None of a node that is
    not logbus's."""
    writer_id = unquote(name)
    try:
        return writer_id if _quoted_writer(writer_id) == name else None
    except (InvalidRequestError, UnicodeEncodeError):
        return None


def _quoted_writer(writer_id: str) -> str:
    if not 0 < len(writer_id) <= MAX_WRITER_LENGTH:
        raise InvalidRequestError(
            f"A writer's id has 1 to {MAX_WRITER_LENGTH} characters, got {len(writer_id)}."
        )
    return quote(writer_id, safe="").replace(".", "%2E")  # "." and ".." are no names of nodes


def schema(schema_id: int) -> str:
    if schema_id < 0:
        raise InvalidRequestError(f"A schema's id is 0 or more, got {schema_id}.")
    return f"{SCHEMA_IDS}/{schema_id:0{_EPOCH_DIGITS}d}"


def schema_content(digest: str) -> str:
    """``digest`` is of a schema's content, in hexadecimal."""
    return f"{SCHEMA_CONTENTS}/{digest}"


def subject(name: str) -> str:
    return f"{SCHEMA_SUBJECTS}/{check_name('subject', name)}"


def mirror(name: str) -> str:
    return f"{MIRRORS}/{check_name('mirror', name)}"


def mirrored_topic(mirror_name: str, topic_name: str) -> str:
    """``topic_name`` is the one in the source."""
    return f"{mirror(mirror_name)}/{check_name('topic', topic_name)}"


def user(name: str) -> str:
    """Users' names are free text (as an address is), so they are quoted."""
    return f"{USERS}/{_quoted_user(name)}"


def user_of(node_name: str) -> str | None:
    """The user that a node below ``USERS`` is of; None of a node that is not logbus's."""
    name = unquote(node_name)
    try:
        return name if _quoted_user(name) == node_name else None
    except (InvalidRequestError, UnicodeEncodeError):
        return None


def _quoted_user(name: str) -> str:
    if not 0 < len(name) <= MAX_USER_LENGTH or not name.isprintable():
        raise InvalidRequestError(
            f"A user's name has 1 to {MAX_USER_LENGTH} printable characters, got {name[:50]!r}."
        )
    return quote(name, safe="").replace(".", "%2E")  # "." and ".." are no names of nodes


def acls(kind: str) -> str:
    """Node of all rules about a kind of resource."""
    return f"{ACLS}/{kind}"


def group(name: str) -> str:
    return f"{CONSUMERS}/{check_name('group', name)}"


def members(group_name: str) -> str:
    return f"{group(group_name)}/ids"


def member(group_name: str, consumer: str) -> str:
    return f"{members(group_name)}/{check_name('consumer', consumer)}"


def assignment(group_name: str) -> str:
    return f"{group(group_name)}/assignment"


def owners(group_name: str) -> str:
    return f"{group(group_name)}/owners"


def owner_fence(group_name: str, topic_name: str) -> str:
    """Fence of a topic: its version changes with every owner. The owners' nodes are below it."""
    return f"{owners(group_name)}/{check_name('topic', topic_name)}"


def topic_owner(group_name: str, topic_name: str) -> str:
    """Owner of all partitions of a topic; the owner of a single one is at ``owner``."""
    return f"{owner_fence(group_name, topic_name)}/all"


def owner(group_name: str, topic_partition: TopicPartition) -> str:
    return f"{owner_fence(group_name, topic_partition.topic)}/{_partition(topic_partition)}"


def offsets(group_name: str) -> str:
    return f"{group(group_name)}/offsets"


def topic_offsets(group_name: str, topic_name: str) -> str:
    return f"{offsets(group_name)}/{check_name('topic', topic_name)}"


def offset(group_name: str, topic_partition: TopicPartition) -> str:
    return f"{topic_offsets(group_name, topic_partition.topic)}/{_partition(topic_partition)}"


def rewinds(group_name: str) -> str:
    return f"{group(group_name)}/rewinds"


def rewind(group_name: str, epoch: int) -> str:
    return f"{rewinds(group_name)}/{epoch:0{_EPOCH_DIGITS}d}"


def _partition(topic_partition: TopicPartition) -> int:
    if topic_partition.partition < 0:
        raise InvalidRequestError(
            f"A partition is 0 or more, got {topic_partition.partition} of {topic_partition.topic}."
        )
    return topic_partition.partition
