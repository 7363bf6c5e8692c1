"""One position for any partition, as people write it: in code, options and commands. Pure."""

from __future__ import annotations

import re
from typing import Final

from spark_logbus.errors import InvalidOptionError
from spark_logbus.model import AtOffset, Earliest, LastDuration, LastRecords, Latest, OffsetSpec
from spark_logbus.record.format import MAX_OFFSET
from spark_logbus.times import parse_duration_us

# In JSON, as in Spark's Kafka source, these stand for earliest and latest.
_AMBIGUOUS: Final = (1, 2)


def parse_position(text: str, *, what: str) -> OffsetSpec:
    """The value of ``what``, such as an option: earliest, latest, an offset, -1000, -10 minutes.
    InvalidOptionError says what is wrong with it."""
    word = text.strip().lower()
    if word.isascii() and word.isdigit() and int(word) <= MAX_OFFSET:
        return AtOffset(int(word))
    match word:
        case "earliest":
            return Earliest()
        case "latest":
            return Latest()
    if word.startswith("-"):
        return before_end(word, what=what)
    raise InvalidOptionError(
        f"{what} is {text!r}; use earliest, latest, an offset, or a place before the end such as "
        "-1000 or '-10 minutes'."
    )


def before_end(word: str, *, what: str) -> LastRecords | LastDuration:
    """``-1000`` records, or ``-10 minutes``, before the end of each partition."""
    records = re.fullmatch(r"-\s*(\d{1,18})\s*(records?)?", word.lower(), re.ASCII)
    if records is None:
        try:
            return LastDuration(parse_duration_us(word[1:]))
        except ValueError as error:
            raise InvalidOptionError(f"{what}: {error}.") from error
    count = int(records[1])
    if records[2] is None and count in _AMBIGUOUS:
        raise InvalidOptionError(
            f"{what}: {word} could mean two things; write earliest or latest, or "
            f"'-{count} records' for the last records of each partition."
        )
    return LastRecords(count)
