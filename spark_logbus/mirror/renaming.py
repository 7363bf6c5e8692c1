"""Names of topics in the target. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from spark_logbus.errors import ConfigError, InvalidNameError
from spark_logbus.model import check_name

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
