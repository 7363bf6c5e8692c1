"""Every error that logbus raises.

One root, ``LogbusError``. Each class says three things that a caller acts on:

* ``fault``: who can mend it (``caller``, ``data``, ``server``, ``network``, ``coordination``);
* ``retriable``: whether the same call can succeed later without a change;
* ``code``: the number that stands for it on the wire (0 is reserved for "no error").

Messages hold both values ("expected 3, got 5") and the remedy. Foreign exceptions are
translated where they enter (``raise ... from``), so nothing above a boundary catches
``OSError`` or an exception of kazoo's.
"""

from __future__ import annotations

from typing import ClassVar, Literal, Self

Fault = Literal["caller", "data", "server", "network", "coordination"]


class LogbusError(Exception):
    """Root of all errors of logbus."""

    code: ClassVar[int] = 1
    fault: ClassVar[Fault] = "server"
    retriable: ClassVar[bool] = False

    @property
    def message(self) -> str:
        return str(self.args[0]) if self.args else type(self).__name__

    def again(self) -> Self:
        """Returns an equal error, to be raised once more or kept for long.

        An error remembers all that was at hand wherever it was raised, each time anew: open files,
        buffers, records of who called. One that is kept to be raised by many would never let go of
        them; one that its own frames keep lets go when Python's collector runs.
        """
        return type(self)(*self.args)


# -- the caller's fault -------------------------------------------------------------------


class InvalidRequestError(LogbusError):
    """A request that no state of the broker could make right."""

    code = 2
    fault: ClassVar[Fault] = "caller"


class RecordBatchOverlapError(InvalidRequestError):
    """A record batch for a follower's log begins before its end and ends after it: the leader has
    joined what the follower has a part of. ``base_offset`` is where it begins."""

    code = 75

    def __init__(self, message: str = "", *, base_offset: int = -1) -> None:
        super().__init__(message)
        self.base_offset = base_offset

    def again(self) -> Self:
        return type(self)(self.message, base_offset=self.base_offset)


class FrameTooLargeError(InvalidRequestError):
    """A frame announces more bytes than the receiver accepts."""

    code = 3


class UnsupportedVersionError(InvalidRequestError):
    """A format, API or offset version that this release does not know."""

    code = 4


class InvalidNameError(InvalidRequestError):
    """A topic, group or subject name that breaks the name rules."""

    code = 5


class ConfigError(InvalidRequestError):
    """A configuration key or value that cannot be used."""

    code = 6


class InvalidOptionError(ConfigError):
    """A Spark option that is unknown, misplaced or has an unusable value."""

    code = 7


class RecordBatchTooLargeError(InvalidRequestError):
    """A record batch above the topic's or the broker's limit."""

    code = 8


class TopicExistsError(InvalidRequestError):
    """A topic of that name is there already."""

    code = 9


class UnknownTopicError(InvalidRequestError):
    """A topic or partition that the cluster does not have."""

    code = 10


class OffsetOutOfRangeError(InvalidRequestError):
    """An offset outside ``[log start offset, high watermark]`` of a partition."""

    code = 11


class BelowWatermarkError(InvalidRequestError):
    """A log was to be truncated below its high watermark, and that was not asked for."""

    code = 27


class GroupRewoundError(InvalidRequestError):
    """A commit of positions from before the group's last rewind."""

    code = 12


class LimitExceededError(LogbusError):
    """A bound on connections, requests or memory is reached; try again when load is lower."""

    code = 13
    fault: ClassVar[Fault] = "caller"
    retriable = True


class OutOfOrderSequenceError(InvalidRequestError):
    """Record batches of an idempotent producer are missing before this one; it was not taken."""

    code = 14


class ProducerFencedError(InvalidRequestError):
    """A newer epoch of the same producer id has appended since."""

    code = 15


class UnknownProducerError(InvalidRequestError):
    """A sequence that goes on, from a producer of which the partition knows nothing (any more)."""

    code = 16


class DuplicateSequenceError(InvalidRequestError):
    """The record batch was appended before, too long ago for its offset to be known."""

    code = 17


class ClaimLostError(InvalidRequestError):
    """A query whose group was taken over by another one goes on as if it still held it."""

    code = 18


class TopicRecreatedError(UnknownTopicError):
    """The topic that was meant is gone, and another one has its name."""

    code = 19


class WriteFencedError(InvalidRequestError):
    """A write that may not be decided any more: it was given up, or another run of the same query
    or job has gone on after it."""

    code = 23


class WriteMismatchError(InvalidRequestError):
    """A version that was committed before comes again, and is not the write that was committed."""

    code = 26


class WriteNotPreparedError(InvalidRequestError):
    """A decision about a write, some of which may have been dropped since it was prepared."""

    code = 24


class UnsupportedSchemaError(InvalidRequestError):
    """A schema whose values no columns can hold, or columns that no schema describes."""

    code = 70


class SchemaMismatchError(InvalidRequestError):
    """Columns or values that the schema they are to be written with does not take, or a record
    batch of another form than its topic's."""

    code = 71


class SchemaResolutionError(InvalidRequestError):
    """A reader's schema to which values of the writer's schema cannot be resolved."""

    code = 72


class UnknownSchemaIdError(InvalidRequestError):
    """A record batch with the id of a schema that the subject of its topic does not have."""

    code = 74


# -- damaged or missing data --------------------------------------------------------------


class CorruptRecordBatchError(LogbusError):
    """Bytes that are not a whole, valid record batch."""

    code = 20
    fault: ClassVar[Fault] = "data"


class DataLossError(LogbusError):
    """Records that a reader was to get are no longer there (see ``failOnDataLoss``)."""

    code = 21
    fault: ClassVar[Fault] = "data"


class StagedDataLostError(LogbusError):
    """Records that were staged for an atomic write are not there any more."""

    code = 22
    fault: ClassVar[Fault] = "data"


class WriteNotDecidedError(StagedDataLostError):
    """A request to publish what was staged, though nobody has decided that, or it is over."""

    code = 25
    fault: ClassVar[Fault] = "caller"


class UndecodableRecordError(LogbusError):
    """A record whose value is not a datum of the schema that it was written with."""

    code = 73
    fault: ClassVar[Fault] = "data"


# -- the server's fault -------------------------------------------------------------------


class StorageError(LogbusError):
    """The disk refused a read or a write; nothing was acknowledged."""

    code = 30
    fault: ClassVar[Fault] = "server"


class PartitionOfflineError(StorageError):
    """The partition stopped after a failed flush, so that nothing unflushed is ever served."""

    code = 31


class NotLeaderError(LogbusError):
    """The broker does not lead that partition (any more, or not yet); refresh the metadata."""

    code = 32
    fault: ClassVar[Fault] = "server"
    retriable = True


class ReplicaSessionError(LogbusError):
    """The leader does not keep that session of a follower, or not any more; begin another one."""

    code = 38
    fault: ClassVar[Fault] = "server"
    retriable = True


class BrokerShuttingDownError(LogbusError):
    """The broker is on its way down and takes no new requests."""

    code = 33
    fault: ClassVar[Fault] = "server"
    retriable = True


class DataDirectoryLockedError(StorageError):
    """Another process holds the data directory."""

    code = 34


class LogMissingError(PartitionOfflineError):
    """The partition's log is not on the disk, or ends before what is known to have been on it."""

    code = 35


class NotEnoughReplicasError(LogbusError):
    """Fewer replicas of a partition are in sync than its topic asks for (``min.insync.replicas``);
    nothing was written."""

    code = 36
    fault: ClassVar[Fault] = "server"
    retriable = True


class OffsetNotAvailableError(LogbusError):
    """A new leader does not know yet how far the records of its log are replicated, and so how far
    consumers may have read before."""

    code = 37
    fault: ClassVar[Fault] = "server"
    retriable = True


# -- network and coordination -------------------------------------------------------------


class BrokerUnavailableError(LogbusError):
    """No connection to a broker, or it broke; the request may or may not have been done."""

    code = 40
    fault: ClassVar[Fault] = "network"
    retriable = True


class RequestTimeoutError(LogbusError):
    """No answer within the bound; the request may or may not have been done."""

    code = 41
    fault: ClassVar[Fault] = "network"
    retriable = True


class ProtocolError(LogbusError):
    """Bytes from the other end that are not the protocol."""

    code = 42
    fault: ClassVar[Fault] = "network"


class CoordinationError(LogbusError):
    """ZooKeeper could not be reached or refused an operation."""

    code = 50
    fault: ClassVar[Fault] = "coordination"
    retriable = True


class ZooKeeperAddressError(CoordinationError):
    """No ZooKeeper with logbus in it is at the address: no such host, nothing listens there,
    something else answers, or there is no such chroot. Retriable: ZooKeeper may be restarting."""

    code = 59


class WrongAddressError(ZooKeeperAddressError):
    """Address at which something else than ZooKeeper answers; wrong until it is changed."""

    code = 66
    fault: ClassVar[Fault] = "caller"
    retriable = False


class ZooKeeperAccessError(CoordinationError):
    """ZooKeeper, or a gateway in its place, refused a login, or does not let its user do that."""

    code = 88
    fault: ClassVar[Fault] = "caller"
    retriable = False


class BrokerIdInUseError(CoordinationError):
    """Another live broker is registered under the same id."""

    code = 51
    retriable = False


class LockHeldError(CoordinationError):
    """Another process does what only one may do at a time."""

    code = 52


class GroupHeldError(CoordinationError):
    """A group that another running query reads the same topic for."""

    code = 53
    retriable = False


# -- the machine --------------------------------------------------------------------------


class JavaNotFoundError(LogbusError):
    """No usable Java runtime (17 or newer)."""

    code = 60
    fault: ClassVar[Fault] = "caller"


class EmbeddedServerError(LogbusError):
    """A server that was to run on this machine did not start or died."""

    code = 61


class ProducerClosedError(LogbusError):
    """``send`` after ``close``, or a record that was still waiting when the producer was closed."""

    code = 62
    fault: ClassVar[Fault] = "caller"


class BufferExhaustedError(LimitExceededError):
    """The producer's memory stayed full for longer than ``max_block_ms``."""

    code = 63


class ProcessForkedError(InvalidRequestError):
    """A client that another process made is used by one that was forked from that."""

    code = 65


class AuthenticationError(LogbusError):
    """Raised when somebody did not prove who it is; nothing was done."""

    code = 81
    fault: ClassVar[Fault] = "caller"


class LoginExpiredError(AuthenticationError):
    """The token that a connection began with has expired; nothing was done. Another connection may
    begin with a newer one."""

    code = 85
    retriable = True


class NotAuthorizedError(LogbusError):
    """A principal may not do what it asked for; nothing was done."""

    code = 82
    fault: ClassVar[Fault] = "caller"


class UntrustedBrokerError(LogbusError):
    """A broker did not prove that it is the one at that address; nothing was sent to it."""

    code = 80
    fault: ClassVar[Fault] = "caller"


class DeliveryFailedError(LogbusError):
    """Records of a producer failed, and nobody has asked for their fate. The first failure is its
    cause."""

    code = 64

    def __init__(self, message: str, *, record_count: int = 0) -> None:
        super().__init__(message)
        #: The number of records that failed.
        self.record_count = record_count

    def again(self) -> Self:
        same = type(self)(self.message, record_count=self.record_count)
        same.__cause__ = self.__cause__
        return same


def _all_subclasses(root: type[LogbusError]) -> list[type[LogbusError]]:
    found = []
    for sub in root.__subclasses__():
        found.append(sub)
        found.extend(_all_subclasses(sub))
    return found


_KNOWN: list[type[LogbusError]] = [LogbusError, *_all_subclasses(LogbusError)]
_BY_CODE: dict[int, type[LogbusError]] = {known.code: known for known in _KNOWN}


def from_code(code: int, message: str) -> LogbusError:
    """The error that a peer reported as ``code``; an unknown code gives a plain LogbusError."""
    return _BY_CODE.get(code, LogbusError)(message)
