"""Every error of logbus: its own number, the same on both ends and in other processes."""

from __future__ import annotations

import inspect
import pickle
from typing import get_args

import pytest

from spark_logbus import errors
from spark_logbus.errors import Fault, LogbusError, from_code
from spark_logbus.protocol import Api, decode_response, encode_error

ALL = [
    known
    for _, known in inspect.getmembers(errors, inspect.isclass)
    if issubclass(known, LogbusError)
]

# What older peers were told; a number once given away is never another error's.
CODES = {
    "LogbusError": 1, "InvalidRequestError": 2, "FrameTooLargeError": 3,
    "UnsupportedVersionError": 4, "InvalidNameError": 5, "ConfigError": 6,
    "InvalidOptionError": 7, "RecordBatchTooLargeError": 8, "TopicExistsError": 9,
    "UnknownTopicError": 10, "OffsetOutOfRangeError": 11, "GroupRewoundError": 12,
    "LimitExceededError": 13, "CorruptRecordBatchError": 20, "DataLossError": 21,
    "StorageError": 30, "PartitionOfflineError": 31, "NotLeaderError": 32,
    "BrokerShuttingDownError": 33, "DataDirectoryLockedError": 34, "LogMissingError": 35,
    "BrokerUnavailableError": 40, "RequestTimeoutError": 41, "ProtocolError": 42,
    "CoordinationError": 50, "BrokerIdInUseError": 51, "JavaNotFoundError": 60,
    "EmbeddedServerError": 61, "ProducerClosedError": 62, "BufferExhaustedError": 63,
}  # fmt: skip


def test_codes_never_change() -> None:
    known = {error.__name__: error.code for error in ALL}
    assert {name: known.get(name) for name in CODES} == CODES


def test_codes_are_unique_and_leave_0_for_no_error() -> None:
    codes = [error.code for error in ALL]
    assert len(set(codes)) == len(codes)
    assert all("code" in vars(error) for error in ALL)
    assert min(codes) > 0


@pytest.mark.parametrize("known", ALL)
def test_it_survives_the_wire(known: type[LogbusError]) -> None:
    with pytest.raises(known, match="expected 3, got 5") as raised:
        decode_response(Api.APPEND, encode_error(known("expected 3, got 5")))
    assert type(raised.value) is known


@pytest.mark.parametrize("known", ALL)
def test_it_pickles(known: type[LogbusError]) -> None:
    copy = pickle.loads(pickle.dumps(known("expected 3, got 5")))
    assert type(copy) is known
    assert copy.message == "expected 3, got 5"


@pytest.mark.parametrize("known", ALL)
def test_it_says_whose_fault_it_is_and_what_it_means(known: type[LogbusError]) -> None:
    assert known.fault in get_args(Fault)
    assert isinstance(known.retriable, bool)
    assert known.__doc__
    assert type(from_code(known.code, "x")) is known
