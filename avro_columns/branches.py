"""The branch of a union that a reader takes, for what was written as one type.

The one that is the same comes first: the same type, and for a record, an enum or a fixed the same
full name. So values whose schema did not change stay what they are, whatever stands before them in
the union. Then come a type of which the writer's name is an alias, one of the same name in another
namespace, and at last the first type to which the writer's is promoted. Java's reader decides so,
too (fastavro's takes the first branch that it can read at all).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

#: What a type is promoted to.
PROMOTIONS: Final = {
    "int": ("long", "float", "double"),
    "long": ("float", "double"),
    "float": ("double",),
    "string": ("bytes",),
    "bytes": ("string",),
}

#: Of branches whose names differ in the namespace only, as many are looked at: nobody has more, and
#: the time that thousands of them take would grow with their square.
_MOST_ALIKE: Final = 20


class TypeName(NamedTuple):
    """``name`` is the full name of a record, an enum or a fixed, whose ``aliases`` are full names,
    too; others have none."""

    kind: str
    name: str = ""
    aliases: Sequence[str] = ()

    @property
    def short(self) -> str:
        return self.name.rpartition(".")[2]


class Branches:
    """The branches of a union, noted once by what they are: unions can have thousands."""

    def __init__(self, branches: Iterable[TypeName]) -> None:
        self._exact: dict[tuple[str, str], int] = {}
        # By rank: by an alias, by the name without its namespace, by an alias without it.
        self._similar: tuple[dict[tuple[str, str], list[int]], ...] = ({}, {}, {})
        for number, branch in enumerate(branches):
            self._exact.setdefault((branch.kind, branch.name), number)
            if not branch.name:
                continue
            shorts = {alias.rpartition(".")[2] for alias in branch.aliases}
            for rank, names in enumerate(({*branch.aliases}, {branch.short}, shorts)):
                for name in names:
                    self._similar[rank].setdefault((branch.kind, name), []).append(number)

    def find(self, writer: TypeName) -> list[int]:
        """The branches that may be taken for data of ``writer``, which is no union, the best first.

        There are several, and 60 at most, only if none has the writer's full name; then the first
        that resolves is meant.
        """
        exact = self._exact.get((writer.kind, writer.name))
        if exact is not None:
            return [exact]
        if writer.name:
            names = (writer.name, writer.short, writer.short)
            found = [
                number
                for held, name in zip(self._similar, names, strict=True)
                for number in held.get((writer.kind, name), ())[:_MOST_ALIKE]
            ]
            return list(dict.fromkeys(found))
        promoted = [
            self._exact[kind, ""]
            for kind in PROMOTIONS.get(writer.kind, ())
            if (kind, "") in self._exact
        ]
        return [min(promoted)] if promoted else []
