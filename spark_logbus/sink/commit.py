"""Atomic writes of Spark: who writes what, what tasks tell the driver, and what it then does."""

from __future__ import annotations

import hashlib
import logging
import secrets
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING

from pyspark import TaskContext
from pyspark.sql.datasource import WriterCommitMessage

from spark_logbus.client import (
    AtomicWrites,
    Cluster,
    Commit,
    Repetition,
    StagedTask,
    WriteIdentity,
    WriteInputs,
)
from spark_logbus.errors import LogbusError
from spark_logbus.record.stage_id import MAX_ATTEMPT, WRITE_BITS
from spark_logbus.sink.checkpoint import planned_inputs
from spark_logbus.sink.options import SinkOptions

if TYPE_CHECKING:
    from spark_logbus.audit.counts import Tallies

logger = logging.getLogger(__name__)

# What Spark sets for the tasks of a micro-batch. The job group of a streaming query is its run.
_QUERY_ID = "sql.streaming.queryId"
_BATCH_ID = "streaming.sql.batchId"
_RUN_ID = "spark.jobGroup.id"
# Where a query without the option has its checkpoint, in a directory of its name; and how Spark
# describes the jobs of a query that has a name.
_CHECKPOINTS = "spark.sql.streaming.checkpointLocation"
_DESCRIPTION = "spark.job.description"
_AFTER_NAME = "\nid = "

_QUERY = "query"  # how the names of writers begin that are streaming queries


@dataclass(frozen=True, slots=True)
class AtomicWrite:
    """One attempt to write one version of something. Picklable. ``checkpoint`` is where that of
    the query is, if no option says so."""

    identity: WriteIdentity
    number: int
    checkpoint: str | None = None


@dataclass(frozen=True)
class StagedMessage(WriterCommitMessage):
    """A task's report to the driver. Picklable."""

    write: AtomicWrite
    staged: StagedTask
    #: What it has staged by topic and window, if that is to be audited.
    counts: Mapping[str, Tallies] = field(default_factory=dict)


def batch_write(options: SinkOptions) -> AtomicWrite:
    """A batch write, made on the driver once."""
    number = secrets.randbits(WRITE_BITS)
    transaction = options.transaction
    if transaction is None:
        once = WriteIdentity(writer=f"write:{uuid.uuid4()}", version=0, once=True)
        return AtomicWrite(once, number)
    # Of each table, as Delta Lake has it: one application may write several topics in one version.
    writer = f"application:{transaction.app_id}:{options.topic or ''}"
    return AtomicWrite(WriteIdentity(writer=writer, version=transaction.version), number)


def micro_batch_write(secret: str) -> AtomicWrite:
    """The write of the micro-batch that this task is of: the same in all of its tasks, which have
    the same ``secret``, and another one when another run of the query does the micro-batch again.

    Query, micro-batch and run are shown to many, and its number is to be guessed by nobody."""
    context = TaskContext.get()
    assert context is not None, "a task has a context"
    query, batch, run = (context.getLocalProperty(name) for name in (_QUERY_ID, _BATCH_ID, _RUN_ID))
    if query is None or batch is None:
        raise LogbusError(
            "Spark does not say which query and micro-batch this task is of "
            f"({_QUERY_ID}, {_BATCH_ID}), so it cannot be written exactly once; set the option "
            "delivery to at-least-once."
        )
    identity = WriteIdentity(writer=f"{_QUERY}:{query}", version=int(batch), run=run or "")
    digest = hashlib.blake2b(f"{query} {batch} {run} {secret}".encode(), digest_size=8).digest()
    number = int.from_bytes(digest, "big") >> (64 - WRITE_BITS)
    return AtomicWrite(identity, number, _usual_checkpoint(context))


def _usual_checkpoint(context: TaskContext) -> str | None:
    """The checkpoint of a query by Spark's setting for all queries and the query's name. What is
    read there is held against the query's id, so a wrong one does no harm."""
    checkpoints = context.getLocalProperty(_CHECKPOINTS)
    name, named, _ = (context.getLocalProperty(_DESCRIPTION) or "").partition(_AFTER_NAME)
    return f"{checkpoints.rstrip('/')}/{name}" if checkpoints and name and named else None


def attempt_number() -> int:
    """A number of this attempt of its task, which no other attempt in the write has."""
    context = TaskContext.get()
    assert context is not None, "a task has a context"
    return context.taskAttemptId() & MAX_ATTEMPT


def commit(
    cluster: Cluster, options: SinkOptions, messages: Sequence[WriterCommitMessage | None]
) -> Commit | None:
    """Commit what the tasks have staged, in their order; None if that is nothing. Raises
    WriteMismatchError for a version that was committed and is another write."""
    staged = [message for message in messages if isinstance(message, StagedMessage)]
    if not staged:
        return None
    write, identity = staged[0].write, staged[0].write.identity
    writes, repetition = _writes(cluster), options.repetition
    inputs = None if identity.once else _inputs(options.checkpoint or write.checkpoint, identity)
    if not any(message.staged.records for message in staged):
        if not identity.once:
            writes.check_empty(identity, write.number, inputs=inputs, repetition=repetition)
        return None
    tasks = [message.staged for message in staged]
    outcome = writes.commit(identity, write.number, tasks, inputs=inputs, repetition=repetition)
    if not outcome.committed:
        logger.info(
            "Version %d of %s was committed before; what was written again is dropped%s.",
            identity.version, identity.writer,
            "" if repetition is Repetition.CHECKED else ", whatever it is",
        )  # fmt: skip
    return outcome


def _inputs(checkpoint: str | None, identity: WriteIdentity) -> WriteInputs | None:
    """Returns the inputs of the micro-batch, where its checkpoint tells them."""
    kind, _, name = identity.writer.partition(":")
    query = name if kind == _QUERY else None
    return planned_inputs(checkpoint, identity.version, query=query)


def abort(cluster: Cluster, write: AtomicWrite) -> None:
    """Drop all that the write has staged; a warning if it cannot be, for it expires by itself."""
    try:
        if _writes(cluster).abort(write.identity, write.number):
            logger.info("The write failed; nothing of it is kept.")
        else:
            logger.warning("The write was reported as failed, but it was committed before that.")
    except LogbusError as error:
        logger.warning("What a failed write has staged goes when it expires: %s", error)


def discard_attempt(cluster: Cluster, write: AtomicWrite, attempt: int) -> None:
    """Drop what an attempt that failed has staged."""
    _writes(cluster).discard(write.number, attempt, writer=write.identity.writer)


@cache
def _writes(cluster: Cluster) -> AtomicWrites:
    return AtomicWrites(cluster)
