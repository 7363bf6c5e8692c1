"""Settings of a topic that say what its replicas are good for, by their names in its configuration.

They have no default in a broker's configuration: what holds depends on how many replicas there are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from spark_logbus.errors import ConfigError

MIN_IN_SYNC: Final = "min.insync.replicas"
UNCLEAN_ELECTION: Final = "unclean.leader.election"
REPLICATION_KEYS: Final = (MIN_IN_SYNC, UNCLEAN_ELECTION)

#: Of a partition: each is a copy of all records, and one more broker that an acknowledgement waits
#: for.
MAX_REPLICAS: Final = 16

# From so many on, the loss of one broker leaves two replicas in sync.
_SAFE_REPLICAS: Final = 3
_FLAGS: Final = {"true": True, "false": False}


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicReplication:
    """The settings as a topic has them."""

    #: So many replicas must be in sync before an append that waits for replicas is taken; by
    #: default 2 of three or more, else 1.
    min_in_sync: int | None = None
    #: A replica that is not in sync may be elected when no other lives, and acknowledged records
    #: may be lost then.
    unclean_election: bool = False

    @classmethod
    def from_topic_config(cls, config: Mapping[str, str]) -> TopicReplication:
        """Raises ConfigError for what no topic can have; other keys are passed over."""
        if config.keys().isdisjoint(REPLICATION_KEYS):
            return _DEFAULT
        return cls(
            min_in_sync=_count(config.get(MIN_IN_SYNC)),
            unclean_election=_flag(config.get(UNCLEAN_ELECTION, "false")),
        )

    def least_in_sync(self, replicas: int) -> int:
        """Returns how many of so many replicas must be in sync."""
        if self.min_in_sync is not None:
            return self.min_in_sync
        return 2 if replicas >= _SAFE_REPLICAS else 1

    def check(self, topic: str, replicas: int) -> None:
        """Raises ConfigError where a partition with so many replicas could never be written to."""
        if self.min_in_sync is not None and self.min_in_sync > replicas:
            have = f"{replicas} replica{'s' * (replicas != 1)}"
            raise ConfigError(
                f"{MIN_IN_SYNC} of the topic {topic!r} is {self.min_in_sync}, and a partition of "
                f"it has {have}: it would never take an append that waits for replicas. Set "
                f"{MIN_IN_SYNC} to 1 to {replicas}, or give the topic more replicas first."
            )


_DEFAULT: Final = TopicReplication()


def _count(text: str | None) -> int | None:
    if text is None:
        return None
    value = int(text) if text.isascii() and text.isdigit() and len(text) < len("100") else 0
    if not 1 <= value <= MAX_REPLICAS:
        raise ConfigError(
            f"The topic configuration sets {MIN_IN_SYNC} to {text!r}; set it to 1 to the number of "
            f"the topic's replicas, of which there are at most {MAX_REPLICAS}."
        )
    return value


def _flag(text: str) -> bool:
    try:
        return _FLAGS[text.lower()]
    except KeyError:
        raise ConfigError(
            f"The topic configuration sets {UNCLEAN_ELECTION} to {text!r}; use true or false."
        ) from None


def default_config(replicas: int) -> dict[str, str]:
    """Returns what holds for a topic with so many replicas that sets none of the keys itself."""
    return {MIN_IN_SYNC: str(_DEFAULT.least_in_sync(replicas)), UNCLEAN_ELECTION: "false"}
