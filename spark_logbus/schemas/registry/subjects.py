"""A subject's versions, and what changes them. Pure."""

from __future__ import annotations

import enum
import hashlib
import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Final

from avro_columns.compatibility import Compatibility
from spark_logbus.schemas.errors import (
    InvalidModeError,
    InvalidSchemaError,
    InvalidVersionError,
    NotPermittedError,
    SubjectDeletedError,
    SubjectNotDeletedError,
    UnknownSubjectError,
    UnknownVersionError,
    VersionDeletedError,
    VersionNotDeletedError,
)

LATEST: Final = -1
MAX_VERSION: Final = (1 << 31) - 1
# Of one subject, deleted ones too: its node stays well below what ZooKeeper takes.
MAX_VERSIONS: Final = 3_000
MAX_REFERENCES: Final = 100


class Mode(enum.Enum):
    """Permission to register: for anybody (READWRITE), nobody (READONLY), nobody whatever the
    subjects' own modes are (READONLY_OVERRIDE, set for all), or a tool that brings schemas with the
    ids that they have elsewhere (IMPORT)."""

    READWRITE = "READWRITE"
    READONLY = "READONLY"
    READONLY_OVERRIDE = "READONLY_OVERRIDE"
    IMPORT = "IMPORT"

    @classmethod
    def named(cls, name: object) -> Mode:
        """Returns the mode of that name, in upper or lower case. Raises InvalidModeError."""
        try:
            return cls(name.upper() if isinstance(name, str) else name)
        except ValueError as error:
            raise InvalidModeError(
                f"There is no mode {name!r}; there are {', '.join(mode.name for mode in cls)}."
            ) from error

    @property
    def writable(self) -> bool:
        return self not in (Mode.READONLY, Mode.READONLY_OVERRIDE)


DEFAULT_MODE: Final = Mode.READWRITE


@dataclass(frozen=True, slots=True)
class Reference:
    """A schema's use of another subject's version. ``name`` is that of the type."""

    name: str
    subject: str
    version: int


@dataclass(frozen=True, slots=True)
class Content:
    """Canonical text of a schema and its references, to which an id is given."""

    text: str
    references: tuple[Reference, ...] = ()

    @property
    def digest(self) -> str:
        """Digest that two contents share only where they are the same."""
        used = [[each.name, each.subject, each.version] for each in self.references]
        return hashlib.sha256(json.dumps([self.text, used]).encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class SubjectVersion:
    """``references`` are those of its schema: subjects and versions."""

    version: int
    schema_id: int
    deleted: bool = False
    references: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Subject:
    """``versions`` in rising order; soft-deleted ones are among them."""

    name: str
    versions: tuple[SubjectVersion, ...] = ()
    compatibility: Compatibility | None = None
    mode: Mode | None = None

    @property
    def live(self) -> list[SubjectVersion]:
        return [each for each in self.versions if not each.deleted]

    def seen(self, *, deleted: bool) -> Sequence[SubjectVersion]:
        """The versions that a reader sees, who wants soft-deleted ones too or not. Raises
        UnknownSubjectError when there is none."""
        found = self.versions if deleted else self.live
        if not found:
            raise self._unknown()
        return found

    def find(self, version: int, *, deleted: bool = False) -> SubjectVersion:
        """``version`` may be LATEST. Raises UnknownSubjectError, UnknownVersionError."""
        found = self.seen(deleted=deleted)
        if version == LATEST:
            return found[-1]
        for each in found:
            if each.version == version:
                return each
        raise UnknownVersionError(
            f"The subject {self.name!r} has no version {version}; its versions are "
            f"{', '.join(str(each.version) for each in found[-10:])}."
        )

    def of_id(self, schema_ids: Collection[int], *, deleted: bool = False) -> SubjectVersion | None:
        """The latest version with one of these ids."""
        found = self.versions if deleted else self.live
        return next((each for each in reversed(found) if each.schema_id in schema_ids), None)

    def _unknown(self) -> UnknownSubjectError:
        gone = " Its versions are soft-deleted." if self.versions else ""
        return UnknownSubjectError(f"There is no subject {self.name!r}.{gone}")


def parse_version(text: object) -> int:
    """LATEST for ``latest`` and -1. Raises InvalidVersionError."""
    if text in ("latest", "-1", LATEST):
        return LATEST
    number = None
    if isinstance(text, int) and not isinstance(text, bool):
        number = text
    elif isinstance(text, str) and text.isascii() and text.isdigit() and len(text) <= 10:
        number = int(text)
    if number is None or not 1 <= number <= MAX_VERSION:
        shown = repr(text)[:60]
        raise InvalidVersionError(
            f"{shown} is no version; a version is a number from 1 to {MAX_VERSION}, or 'latest'."
        )
    return number


def mode_in_force(own: Mode | None, of_all: Mode | None) -> Mode:
    """The mode of a subject, by its own and that of all."""
    if of_all is Mode.READONLY_OVERRIDE:
        return of_all
    return own or of_all or DEFAULT_MODE


def next_version(subject: Subject) -> int:
    return subject.versions[-1].version + 1 if subject.versions else 1


def added(subject: Subject, new: SubjectVersion, *, without: Collection[int] = ()) -> Subject:
    """The subject with one version more, and without the ``without`` ones. Raises
    InvalidSchemaError when it has too many, InvalidVersionError when there is none beyond,
    NotPermittedError when the version is taken."""
    kept = [each for each in subject.versions if each.version not in without]
    if new.version > MAX_VERSION:
        raise InvalidVersionError(
            f"Version {new.version} of the subject {subject.name!r} would be beyond the last that "
            f"there can be, {MAX_VERSION}. Import a lower one, or use another subject."
        )
    if any(each.version == new.version for each in kept):
        raise NotPermittedError(
            f"The subject {subject.name!r} has a version {new.version} already; a version is "
            "never given to another schema."
        )
    if len(kept) >= MAX_VERSIONS:
        raise InvalidSchemaError(
            f"The subject {subject.name!r} has {len(kept)} versions, and {MAX_VERSIONS} at most "
            "are taken. Delete some of them permanently."
        )
    versions = sorted([*kept, new], key=lambda each: each.version)
    return replace(subject, versions=tuple(versions))


def to_soft_delete(subject: Subject, version: int | None) -> list[SubjectVersion]:
    """The versions that a soft deletion is of: one, or all (None). Raises UnknownSubjectError,
    UnknownVersionError, and, where it is deleted already, SubjectDeletedError or
    VersionDeletedError."""
    subject.seen(deleted=True)
    if version is None:
        if not subject.live:
            raise SubjectDeletedError(
                f"The subject {subject.name!r} is soft-deleted already; delete it permanently, or "
                "register a schema to have it again."
            )
        return subject.live
    if version == LATEST:
        return [subject.find(LATEST)]
    found = subject.find(version, deleted=True)
    if found.deleted:
        raise VersionDeletedError(
            f"Version {version} of the subject {subject.name!r} is soft-deleted already; delete it "
            "permanently, or register its schema to have it again."
        )
    return [found]


def to_remove(subject: Subject, version: int | None) -> list[SubjectVersion]:
    """The versions that a permanent deletion is of: one, or all (None). Raises UnknownSubjectError,
    UnknownVersionError, and SubjectNotDeletedError or VersionNotDeletedError before a soft one."""
    subject.seen(deleted=True)
    if version is None:
        if subject.live:
            raise SubjectNotDeletedError(
                f"The subject {subject.name!r} has to be soft-deleted before it is deleted "
                f"permanently; it has {len(subject.live)} versions."
            )
        return list(subject.versions)
    found = subject.find(version, deleted=True)
    if not found.deleted:
        raise VersionNotDeletedError(
            f"Version {found.version} of the subject {subject.name!r} has to be soft-deleted "
            "before it is deleted permanently."
        )
    return [found]


def soft_deleted(subject: Subject, gone: Collection[SubjectVersion]) -> Subject:
    """Returns the subject with these versions hidden; with the last one, its compatibility goes."""
    numbers = {each.version for each in gone}
    marked = [
        replace(each, deleted=True) if each.version in numbers else each
        for each in subject.versions
    ]
    after = replace(subject, versions=tuple(marked))
    return after if after.live else replace(after, compatibility=None)


def removed(subject: Subject, gone: Collection[SubjectVersion]) -> Subject:
    """Returns the subject without these versions; with the last one, its settings go too."""
    numbers = {each.version for each in gone}
    kept = [each for each in subject.versions if each.version not in numbers]
    return replace(subject, versions=tuple(kept)) if kept else Subject(subject.name)
