"""Settings of a mirror."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from spark_logbus.errors import ConfigError, InvalidNameError
from spark_logbus.model import check_name
from spark_logbus.selection import Selection

_PLACE: Final = "{topic}"


@dataclass(frozen=True, slots=True)
class Renaming:
    """A name in which ``{topic}`` stands for the one in the source."""

    template: str = _PLACE

    def __post_init__(self) -> None:
        if self.template.count(_PLACE) != 1:
            raise ConfigError(
                f"Topics are to be named {self.template!r} in the target; write {_PLACE} in it, "
                "once, where the name of the topic goes, as in 'replica.{topic}'."
            )

    def target(self, topic: str) -> str:
        """Raises ConfigError for a name that no topic can have."""
        name = self.template.replace(_PLACE, topic)
        try:
            return check_name("topic", name)
        except InvalidNameError as error:
            raise ConfigError(f"The topic {topic!r} cannot be named so: {error.message}") from error

    def targets(self, topics: Iterable[str]) -> dict[str, str]:
        return {topic: self.target(topic) for topic in topics}


@dataclass(frozen=True, slots=True, kw_only=True)
class MirrorConfig:
    """``name`` is the mirror's own: its state in the target goes by it."""

    name: str
    topics: Selection
    renaming: Renaming = field(default_factory=Renaming)
    #: Copy what is left when the source has deleted records before they were copied.
    allow_gaps: bool = False
    #: Count what is copied, by window, and publish that in the target's audit topic.
    audit: bool = False
    #: A round copies about so much. Each has some writes to ZooKeeper and a flush for each
    #: partition beside its bytes; what a round holds is what a crash has copied anew.
    round_bytes: int = 64 << 20
    #: Partitions that are read at the same time.
    readers: int = 4
    #: Between two looks at a source that has nothing new.
    poll_ms: int = 500
    #: The longest pause before another try while a cluster is away.
    retry_max_ms: int = 10_000
    #: At its start a mirror waits for each cluster for so long, and with ``once`` it gives up when
    #: nothing has succeeded for so long.
    give_up_ms: int = 60_000

    def __post_init__(self) -> None:
        check_name("mirror", self.name)
        for key in ("round_bytes", "readers", "poll_ms", "retry_max_ms", "give_up_ms"):
            value = getattr(self, key)
            if value < 1:
                raise ConfigError(f"{key} is {value!r}; use a whole number of at least 1.")
