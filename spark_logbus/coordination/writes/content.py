"""The content of an atomic write, so short that a writer's node keeps it of many versions. Pure.

A version that comes again has to be the write that was decided under it: a query whose checkpoint
is behind plans other records under the same number, and to drop them would be to lose them. So
that it can be told, a proposal comes with what attempts at the same write have in common, wherever
they run and however their tasks are cut: the numbers of records, and the inputs they were made of.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from spark_logbus.coordination.payloads import NonNegative
from spark_logbus.errors import InvalidRequestError, WriteMismatchError

# Spark keeps the last 100 micro-batches of a query, so no checkpoint goes back further by itself.
MAX_REMEMBERED: Final = 100
MAX_DIGEST_CHARACTERS: Final = 32
MAX_INPUTS_CHARACTERS: Final = 16_384
MAX_RECORDS: Final = 2**63 - 1

REMEDY: Final = (
    "A streaming query: its checkpoint is behind what it has committed; put the newest state of "
    "the checkpoint back, or begin a new checkpoint where the last version ended "
    "(startingOffsets). A write with txnVersion: give what is new a version of its own. If you "
    "know that this version has all that it should have, the option repetition=dropped passes it "
    "over; take the option out again afterwards."
)


@dataclass(frozen=True, slots=True)
class WriteContent:
    """Digests are texts that differ where what they stand for does; an empty one says nothing.

    ``topics`` stands for the records of each topic, ``partitions`` for those of each partition
    where key or row decide it, as long as ``layout``, the topics' numbers of partitions, is the
    same. ``inputs`` stands for the ends of the sources.
    """

    records: int
    topics: str = ""
    partitions: str = ""
    layout: str = ""
    inputs: str = ""


class RememberedVersion(msgspec.Struct, frozen=True, array_like=True):
    """A version that was decided, with the content of its write. It is stored as a list, as there
    are a hundred of them."""

    version: int
    records: NonNegative
    topics: str = ""
    partitions: str = ""
    layout: str = ""
    inputs: str = ""

    @property
    def content(self) -> WriteContent:
        return WriteContent(self.records, self.topics, self.partitions, self.layout, self.inputs)


def check_content(content: WriteContent, inputs: str) -> None:
    """Refuse what would make a writer's node grow without bound."""
    digests = (content.topics, content.partitions, content.layout, content.inputs)
    if not 0 <= content.records <= MAX_RECORDS:
        raise InvalidRequestError(f"A write cannot hold {content.records} records.")
    longest = max(map(len, digests))
    if longest > MAX_DIGEST_CHARACTERS:
        raise InvalidRequestError(
            f"A digest of a write has {longest} characters, and may have {MAX_DIGEST_CHARACTERS}."
        )
    if len(inputs) > MAX_INPUTS_CHARACTERS:
        raise InvalidRequestError(
            f"The inputs of a write are told in {len(inputs)} characters; at most "
            f"{MAX_INPUTS_CHARACTERS} are kept. Leave them out."
        )


def remember(
    before: Sequence[RememberedVersion], version: int, content: WriteContent | None
) -> tuple[RememberedVersion, ...]:
    """The memory after another version is decided; empty where nobody said what that holds, for
    what is remembered has no holes."""
    if content is None:
        return ()
    new = RememberedVersion(
        version, content.records, content.topics, content.partitions, content.layout, content.inputs
    )
    return (*before, new)[-MAX_REMEMBERED:]


def require_same(
    remembered: Sequence[RememberedVersion],
    *,
    version: int,
    content: WriteContent,
    inputs: str,
    last: int,
    last_inputs: str,
) -> None:
    """Raise WriteMismatchError unless ``content`` is what was committed under the version, which
    is ``last``, the last one, or an earlier one."""
    standing = next((one.content for one in remembered if one.version == version), None)
    if standing is not None:
        what = _difference(standing, content)
        committed = f"was committed with {_records(standing)}"
    elif remembered and version > remembered[0].version:
        what = "" if not content.records else "nothing of it was committed"
        committed = "was passed over as it had no records, or never came, before later ones"
    else:
        oldest = remembered[0].version if remembered else None
        what = "there is no telling whether it is the same write"
        committed = (
            "is older than all whose content is remembered "
            f"({'none' if oldest is None else f'from {oldest} on'})"
        )
    if not what:
        return
    came = f"{_records(content)}{_told(inputs)}"
    raise WriteMismatchError(
        f"Version {version} {committed}, and comes again with {came}: {what}, so nothing of what "
        f"comes is kept. The last version that is committed is {last}{_told(last_inputs)}. {REMEDY}"
    )


def _difference(standing: WriteContent, content: WriteContent) -> str:
    if standing.records != content.records or standing.topics != content.topics:
        return "the topics get other numbers of records"
    if standing.layout == content.layout and standing.partitions != content.partitions:
        return "the partitions get other numbers of records"
    if standing.inputs and content.inputs and standing.inputs != content.inputs:
        return "it is made of other inputs"
    return ""


def _records(content: WriteContent) -> str:
    return f"{content.records} record{'' if content.records == 1 else 's'}"


def _told(inputs: str) -> str:
    return f", of inputs up to {inputs}" if inputs else ""
