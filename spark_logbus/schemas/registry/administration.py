"""Changes of what is there: deletions, compatibility, modes.

A soft deletion hides a version and keeps its id, with which data was written. A permanent one takes
the version away, and its id too when nothing else has it: data of that id cannot be read any more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Final

from avro_columns.compatibility import Compatibility
from spark_logbus.coordination import paths
from spark_logbus.retry import Deadline
from spark_logbus.schemas.errors import (
    NotConfiguredError,
    NotPermittedError,
    ReferenceExistsError,
)
from spark_logbus.schemas.registry.registry import DEFAULT_COMPATIBILITY
from spark_logbus.schemas.registry.store import Read, SchemaStore, Settings
from spark_logbus.schemas.registry.subjects import (
    DEFAULT_MODE,
    Mode,
    Subject,
    SubjectVersion,
    mode_in_force,
    removed,
    soft_deleted,
    to_remove,
    to_soft_delete,
)
from spark_logbus.zookeeper.nodes import LostReplies, Node
from spark_logbus.zookeeper.session import Session
from spark_logbus.zookeeper.transactions import Operation

# Versions whose ids go in one transaction: their schemas are read, and can be large.
_PART: Final = 20


class SchemaAdministration:
    """Deletes versions, and sets what is to hold. Thread-safe."""

    def __init__(self, session: Session) -> None:
        self._store = SchemaStore(session)

    # -- deletions -----------------------------------------------------------------------

    def delete_version(self, subject: str, version: int, *, permanent: bool = False) -> int:
        """The version that was deleted; ``version`` may be LATEST. Raises UnknownSubjectError,
        UnknownVersionError, VersionDeletedError, VersionNotDeletedError, ReferenceExistsError,
        NotPermittedError."""
        [deleted], _ = self._delete(subject, version, permanent)
        return deleted

    def delete_subject(self, subject: str, *, permanent: bool = False) -> list[int]:
        """The versions that were deleted. Raises UnknownSubjectError, SubjectDeletedError,
        SubjectNotDeletedError, ReferenceExistsError, NotPermittedError.

        Permanently, a subject with many versions goes part by part, the latest first; what is left
        when that is cut short can be deleted again."""
        numbers, more = self._delete(subject, None, permanent)
        while more:
            part, more = self._delete(subject, None, permanent)
            numbers += part
        return sorted(numbers)

    def _delete(self, name: str, version: int | None, permanent: bool) -> tuple[list[int], bool]:
        """Deletes versions; returns their numbers, and True if there are more to delete."""
        what = f"delete {name if version is None else f'version {version} of {name}'}"
        lost = LostReplies[tuple[Subject, tuple[list[int], bool]]]()

        def step(deadline: Deadline) -> tuple[list[int], bool]:
            self._store.refresh(deadline)
            read = self._store.subject(name, deadline)
            for made, done in lost:
                if read.subject == made:
                    return done
            self._require_writable(read.subject, deadline)
            gone = (to_remove if permanent else to_soft_delete)(read.subject, version)
            part = gone[-_PART:] if permanent else gone
            numbers = [each.version for each in part]
            operations = self._id_removals(read.subject, part, deadline) if permanent else []
            self._require_unreferenced(name, numbers, permanent, version is None, deadline)
            after = (removed if permanent else soft_deleted)(read.subject, part)
            operations.append(self._store.write(read, after))
            result = numbers, len(part) < len(gone)
            with lost.noting((after, result)):
                self._store.tree.transact(what, operations, deadline=deadline)
            return result

        return self._store.tree.repeat(what, step)

    def _id_removals(
        self, subject: Subject, gone: Iterable[SubjectVersion], deadline: Deadline
    ) -> list[Operation]:
        """Returns the removals of ids that nothing has any more when these versions are gone."""
        numbers = {each.version for each in gone}
        ids = {each.schema_id for each in subject.versions if each.version in numbers}
        operations = {each: self._store.take_ids([each], deadline) for each in ids}
        for other in self._store.all_subjects(deadline):
            for each in other.versions:
                if other.name != subject.name or each.version not in numbers:
                    operations.pop(each.schema_id, None)
        return [operation for each in operations.values() for operation in each]

    def _require_unreferenced(
        self,
        name: str,
        versions: Sequence[int],
        permanent: bool,
        whole: bool,
        deadline: Deadline,
    ) -> None:
        """A soft-deleted schema's references count for a permanent deletion only; those within a
        subject do not count when all of it is deleted."""
        for other in self._store.all_subjects(deadline):
            if whole and other.name == name:
                continue
            for each in other.versions if permanent else other.live:
                for version in versions:
                    if (name, version) in each.references:
                        raise ReferenceExistsError(
                            f"Version {version} of the subject {name!r} is referred to by version "
                            f"{each.version} of {other.name!r} (id {each.schema_id}); delete that "
                            "one first.",
                            other.name,
                        )

    # -- compatibility and modes ---------------------------------------------------------

    def set_compatibility(self, subject: str | None, compatibility: Compatibility) -> None:
        """Sets the compatibility of a subject, which need not be there yet, or (None) of all
        subjects without their own. Raises NotPermittedError in the mode READONLY."""
        self._set(
            subject,
            lambda now: replace(now, compatibility=compatibility),
            lambda now: replace(now, compatibility=compatibility),
            checked=True,
        )

    def unset_compatibility(self, subject: str | None) -> Compatibility:
        """Removes the compatibility and returns the one that held until now. Raises
        NotConfiguredError for a subject without its own, and NotPermittedError in the mode
        READONLY."""
        before_subject, before = self._set(
            subject,
            lambda now: replace(_own(now, now.compatibility, "compatibility"), compatibility=None),
            lambda now: replace(now, compatibility=None),
            checked=True,
        )
        own = before.compatibility if subject is None else before_subject.compatibility
        return own or DEFAULT_COMPATIBILITY

    def set_mode(self, subject: str | None, mode: Mode, *, force: bool = False) -> None:
        """Sets the mode of a subject, which need not be there yet, or (None) of all subjects
        without their own. The mode IMPORT wants no schema to be there, as ids could clash, unless
        it is set already or ``force`` is. Raises NotPermittedError."""
        self._set(
            subject,
            lambda now: replace(now, mode=mode),
            lambda now: replace(now, mode=mode),
            importing=mode is Mode.IMPORT and not force,
        )

    def unset_mode(self, subject: str | None) -> Mode:
        """Removes the mode and returns the one that held until now. Raises NotConfiguredError for a
        subject without its own."""
        before_subject, before = self._set(
            subject,
            lambda now: replace(_own(now, now.mode, "mode"), mode=None),
            lambda now: replace(now, mode=None),
        )
        return (before.mode if subject is None else before_subject.mode) or DEFAULT_MODE

    def _set(
        self,
        name: str | None,
        change: Callable[[Subject], Subject],
        change_all: Callable[[Settings], Settings],
        *,
        checked: bool = False,
        importing: bool = False,
    ) -> tuple[Subject, Settings]:
        """Changes subject or settings; returns both as they were before."""
        what = f"set what holds for {'all subjects' if name is None else name}"
        if name is not None:
            paths.subject(name)
        lost = LostReplies[tuple[Subject | Settings, tuple[Subject, Settings]]]()

        def step(deadline: Deadline) -> tuple[Subject, Settings]:
            self._store.prepare(deadline)
            self._store.refresh(deadline)
            settings, node = self._store.settings(deadline)
            read = Read(Subject(""), None) if name is None else self._store.subject(name, deadline)
            for made, earlier in lost:
                if made == (settings if name is None else read.subject):
                    return earlier
            mode = mode_in_force(read.subject.mode, settings.mode)
            if checked:
                _require_writable(name, mode)
            if importing and mode is not Mode.IMPORT:
                self._require_nothing(name, read.subject, deadline)
            before = read.subject, settings
            after: Subject | Settings
            if name is None:
                after = change_all(settings)
                operation = self._store.write_settings(_there(node), after)
            else:
                after = change(read.subject)
                operation = self._store.write(read, after)
            with lost.noting((after, before)):
                self._store.tree.transact(what, [operation], deadline=deadline)
            return before

        return self._store.tree.repeat(what, step)

    def _require_nothing(self, name: str | None, subject: Subject, deadline: Deadline) -> None:
        subjects = self._store.all_subjects(deadline) if name is None else [subject]
        taken = [each.name for each in subjects if each.versions]
        if taken:
            raise NotPermittedError(
                f"There are schemas already, of the subject {taken[0]!r}; what is imported could "
                "clash with them. Delete them permanently, or force the mode."
            )

    def _require_writable(self, subject: Subject, deadline: Deadline) -> None:
        settings, _ = self._store.settings(deadline)
        _require_writable(subject.name, mode_in_force(subject.mode, settings.mode))


def _require_writable(name: str | None, mode: Mode) -> None:
    if not mode.writable:
        whose = "All subjects are" if name is None else f"The subject {name!r} is"
        raise NotPermittedError(f"{whose} in the mode {mode.name}; set the mode READWRITE first.")


def _own(subject: Subject, value: object, what: str) -> Subject:
    if value is None:
        raise NotConfiguredError(f"The subject {subject.name!r} has no {what} of its own.")
    return subject


def _there(node: Node | None) -> Node:
    assert node is not None  # it was made by this step
    return node
