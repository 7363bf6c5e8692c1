"""The options of ``df.write`` and ``df.writeStream``, parsed once into one frozen value."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, TypeVar

from spark_logbus.errors import InvalidNameError, InvalidOptionError
from spark_logbus.model import Acks, Compression, check_name
from spark_logbus.spark.driver import zookeeper_address

T = TypeVar("T")

KNOWN: Final = ("zookeeper", "topic", "path", "acks", "compression")

# Spark hands these of its own streaming options over with the user's.
_SPARKS_OWN: Final = ("checkpointlocation", "queryname")

_FOREIGN: Final = {
    "kafka.bootstrap.servers": "zookeeper",
    "bootstrap.servers": "zookeeper",
    "kafka.acks": "acks",
    "kafka.compression.type": "compression",
    "compression.type": "compression",
    "subscribe": "topic",
}

_ACKS: Final = {acks.value: acks for acks in Acks}
_COMPRESSION: Final = {kind.name.lower(): kind for kind in Compression}


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkOptions:
    """The options of one write."""

    #: Connect string, with the chroot after a slash.
    zookeeper: str
    #: Topic of every row, whatever the column ``topic`` says; None leaves it to the column.
    topic: str | None = None
    #: A task ends when this is done with its appends.
    acks: Acks = Acks.FLUSHED
    #: Compression of the record batches.
    compression: Compression = Compression.NONE


def parse_options(options: Mapping[str, str], *, overwrite: bool) -> SinkOptions:
    """All options of a write; InvalidOptionError names the one that is wrong, and the remedy."""
    given = {name.lower(): value for name, value in options.items()}
    _refuse_unknown(given)
    if overwrite:
        raise InvalidOptionError(
            "A log is appended to and never overwritten; use .mode('append'), or a topic of "
            "another name. (Output mode complete of a stream means overwrite; for it, write from "
            "foreachBatch.)"
        )
    topic = _topic(given)
    return SinkOptions(
        zookeeper=zookeeper_address(_text(given, "zookeeper")),
        topic=topic,
        acks=_choice(given, "acks", _ACKS, Acks.FLUSHED),
        compression=_choice(given, "compression", _COMPRESSION, Compression.NONE),
    )


def _refuse_unknown(given: Mapping[str, str]) -> None:
    for name in sorted(given):
        if name in KNOWN or name in _SPARKS_OWN:
            continue
        close = difflib.get_close_matches(name, KNOWN, n=1, cutoff=0.6)
        meant = _FOREIGN.get(name) or (close[0] if close else None)
        hint = f"did you mean {meant}?" if meant else f"known are {', '.join(KNOWN)}."
        raise InvalidOptionError(f"Option {name} is unknown to the logbus sink; {hint}")


def _topic(given: Mapping[str, str]) -> str | None:
    topic, path = _text(given, "topic"), _text(given, "path")
    if topic is not None and path is not None and topic != path:
        raise InvalidOptionError(
            f"Give either save({path!r}), which means topic, or the option topic, not both."
        )
    chosen = topic if topic is not None else path
    if chosen is not None:
        try:
            check_name("topic", chosen)
        except InvalidNameError as error:
            raise InvalidOptionError(f"Option topic: {error.message}") from error
    return chosen


def _text(given: Mapping[str, str], name: str) -> str | None:
    value = given.get(name)
    if value is not None and not value.strip():
        raise InvalidOptionError(f"Option {name} is empty; give a value or leave it out.")
    return value


def _choice(given: Mapping[str, str], name: str, choices: Mapping[str, T], default: T) -> T:
    value = _text(given, name)
    if value is None:
        return default
    chosen = choices.get(value.strip().lower())
    if chosen is None:
        raise InvalidOptionError(
            f"Option {name}: expected one of {', '.join(choices)}, got {value!r}."
        )
    return chosen
