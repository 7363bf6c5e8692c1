"""A reader's view of its group's committed offsets in ZooKeeper.

The group says how far processing has got, for people and tools; Spark's checkpoint says where a
query goes on. The two agree after each micro-batch, but only the checkpoint decides, unless the
group is rewound: then the group has another last rewind, and the reader follows (see
``rewound``).
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from spark_logbus.errors import GroupRewoundError
from spark_logbus.model import RewindMark, TopicPartition

if TYPE_CHECKING:  # Spark tasks import this package and have no use for ZooKeeper's client
    from spark_logbus.coordination.groups.offsets import CommittedOffset, GroupOffsets
    from spark_logbus.coordination.groups.rewinds import GroupRewinds
    from spark_logbus.coordination.groups.topic_owners import GroupOwnership

logger = logging.getLogger(__name__)


class GroupCommitter:
    """Commits one reader's progress, forward only, on topics that it has claimed for its group.
    Who only reads what is committed claims nothing. Not thread-safe."""

    def __init__(
        self,
        offsets: GroupOffsets,
        rewinds: GroupRewinds,
        ownership: GroupOwnership,
        *,
        group: str,
        by: str,
    ) -> None:
        self._offsets = offsets
        self._rewinds = rewinds
        self._ownership = ownership
        self._group = group
        self._by = by
        self._written: tuple[RewindMark, dict[str, str], dict[TopicPartition, int]] | None = None

    def committed(self) -> dict[TopicPartition, CommittedOffset]:
        """Reads all committed offsets of the group from ZooKeeper."""
        return self._offsets.committed(self._group)

    def mark(self) -> RewindMark:
        """The group's last rewind."""
        return self._rewinds.mark(self._group)

    def rewound(self, *, after: RewindMark, up_to: RewindMark) -> dict[TopicPartition, int]:
        """The offsets that rewinds after ``after``, up to ``up_to``, set: the latest for each
        partition. When the group was deleted since ``after``, all that it had come after it."""
        history = sorted(self._rewinds.history(self._group), key=lambda r: r.epoch)
        first = after.epoch + 1
        known = [each.mark for each in history if each.epoch == after.epoch]
        if after.epoch > up_to.epoch or any(not each.may_be(after) for each in known):
            first = 1
        positions: dict[TopicPartition, int] = {}
        for rewind in history:
            if first <= rewind.epoch <= up_to.epoch:
                positions.update(rewind.positions)
        return positions

    def hold(self, topics: Iterable[str]) -> None:
        """Claim ``topics`` before they are read. May wait for a query that has just ended;
        GroupHeldError when it has not, ClaimLostError when another one has taken over."""
        self._ownership.acquire(topics)

    def commit(
        self,
        positions: Mapping[TopicPartition, int],
        *,
        topic_ids: Mapping[str, str],
        mark: RewindMark,
    ) -> bool:
        """Record that everything below ``positions`` is processed; False if the group was rewound.

        Never moves a committed offset back: a query that starts over from an old checkpoint or
        from earliest repeats records, but takes nothing back from the group. A rewind is the one
        way back, and after one the positions of an older ``mark`` count for nothing.
        ClaimLostError when another query has taken over.
        """
        wanted = (mark, dict(topic_ids), dict(positions))
        if wanted == self._written:
            return True  # an idle query is asked over and over
        self.hold({topic_partition.topic for topic_partition in positions})
        try:
            self._offsets.commit(
                self._group,
                positions,
                actor=self._by,
                topic_ids=topic_ids,
                allow_backward=False,
                expected_mark=mark,
                ownership=self._ownership,
            )
        except GroupRewoundError:
            logger.info(
                "Group %s was rewound while its records were processed; the committed offsets "
                "stay as the rewind set them.",
                self._group,
            )
            return False
        self._written = wanted
        return True
