"""The schema registry, as a library: it needs a ZooKeeper session and nothing else.

A registration is read, decided and written in one step, which is repeated as long as others change
what it was decided on. A step that lost its reply is repeated too: it finds the schema registered,
and returns what the first one has done.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from avro_columns.compatibility import Compatibility, OldSchema, VersionFault, check
from avro_columns.json_text import check_characters
from avro_columns.model import Schema
from avro_columns.text import (
    canonical_text,
    check_readable,
    normalized_text,
    self_contained,
)
from spark_logbus.coordination import paths
from spark_logbus.errors import CoordinationError
from spark_logbus.retry import Deadline
from spark_logbus.schemas.avro_errors import logbus_errors
from spark_logbus.schemas.errors import (
    IncompatibleSchemaError,
    InvalidSchemaError,
    NotPermittedError,
    SchemaTooLargeError,
    SubjectChangedError,
    UnknownSchemaError,
    UnknownSubjectError,
    UnknownVersionError,
)
from spark_logbus.schemas.registry.cache import SchemaCache
from spark_logbus.schemas.registry.references import Resolver
from spark_logbus.schemas.registry.store import Read, SchemaStore, Settings
from spark_logbus.schemas.registry.subjects import (
    LATEST,
    MAX_REFERENCES,
    Content,
    Mode,
    Reference,
    Subject,
    SubjectVersion,
    added,
    mode_in_force,
    next_version,
)
from spark_logbus.zookeeper.session import Session
from spark_logbus.zookeeper.states import SessionState
from spark_logbus.zookeeper.transactions import MAX_TRANSACTION_BYTES, Operation, size_of

DEFAULT_COMPATIBILITY = Compatibility.BACKWARD
_TOGETHER: Final = 50  # schemas that are asked for at once, as each may take 400 KB


@dataclass(frozen=True, slots=True)
class RegisteredSchema:
    """A version of a subject, with its schema."""

    subject: str
    version: int
    schema_id: int
    text: str
    references: tuple[Reference, ...] = ()
    deleted: bool = False


class SchemaRegistry:
    """Subjects, their versions and ids. Thread-safe; remembers schemas by id.

    Errors are those of ``schemas.errors``, and CoordinationError when ZooKeeper does not answer
    within the session's bound.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._store = SchemaStore(session)
        self._cache = SchemaCache()

    # -- subjects ------------------------------------------------------------------------

    def subjects(
        self, prefix: str = "", *, deleted: bool = False, deleted_only: bool = False
    ) -> list[str]:
        """Names in order; ``deleted`` adds those whose versions are all soft-deleted."""
        found = []
        for subject in self.matching(prefix):
            gone = not subject.live
            if subject.versions and (gone if deleted_only else deleted or not gone):
                found.append(subject.name)
        return found

    def subject(self, name: str) -> Subject:
        """A subject with its versions and settings; one that there is not has none."""
        deadline = self._session.deadline()
        self._store.refresh(deadline)
        return self._store.subject(name, deadline).subject

    def versions(self, subject: str, *, deleted: bool = False) -> list[int]:
        """Raises UnknownSubjectError."""
        return [each.version for each in self.subject(subject).seen(deleted=deleted)]

    def schema_ids(self, subject: str, *, deleted: bool = False) -> list[int]:
        """The ids of a subject's versions, in the order of the versions. Raises
        UnknownSubjectError."""
        return [each.schema_id for each in self.subject(subject).seen(deleted=deleted)]

    def version(
        self, subject: str, version: int = LATEST, *, deleted: bool = False
    ) -> RegisteredSchema:
        """Raises UnknownSubjectError, UnknownVersionError."""
        found = self.subject(subject).find(version, deleted=deleted)
        return self._registered(subject, found, self.by_id(found.schema_id))

    def all_versions(
        self, prefix: str = "", *, deleted: bool = False, latest_only: bool = False
    ) -> list[tuple[str, SubjectVersion]]:
        """The versions of all subjects, with the subjects' names."""
        found = []
        for subject in self.matching(prefix):
            versions = subject.versions if deleted else subject.live
            found += [(subject.name, each) for each in versions[-1 if latest_only else 0 :]]
        return found

    def matching(self, prefix: str = "") -> list[Subject]:
        """All subjects that can be read, those with settings only too."""
        deadline = self._session.deadline()
        self._store.refresh(deadline)
        names = [name for name in self._store.names(deadline) if name.startswith(prefix)]
        return self._store.readable_subjects(names, deadline)

    # -- ids -----------------------------------------------------------------------------

    def by_id(self, schema_id: int) -> Content:
        """Returns the schema's text and references. Raises UnknownSchemaError."""
        known = self._cache.get(schema_id)
        return known.content if known is not None else self.by_id_now(schema_id)

    def by_id_now(self, schema_id: int) -> Content:
        """Reads the schema from ZooKeeper: unlike ``by_id``, notices that another registry has
        deleted it permanently. Returns the remembered schema while ZooKeeper does not answer."""
        known = self._cache.get(schema_id)
        if known is not None and self._session.state is not SessionState.CONNECTED:
            return known.content
        deadline = self._session.deadline()
        try:
            content = self._content(schema_id, deadline)
        except UnknownSchemaError:
            self._cache.drop(schema_id)
            raise
        except CoordinationError as failure:
            if known is None or not failure.retriable:
                raise
            return known.content
        if known is None:
            self._cache.put(schema_id, content)
        return content

    def _content(self, schema_id: int, deadline: Deadline) -> Content:
        try:
            return self._store.content(schema_id, deadline)
        except UnknownSchemaError:
            self._store.refresh(deadline)  # it may be new to the server that we ask
            return self._store.content(schema_id, deadline)

    def last_id(self) -> int:
        """The highest id that was ever given, 0 before the first."""
        deadline = self._session.deadline()
        self._store.refresh(deadline)
        return self._store.last_id(deadline)

    def parsed(self, schema_id: int) -> Schema:
        """The model of a schema, with all that it refers to. Raises UnknownSchemaError."""
        content = self.by_id(schema_id)
        known = self._cache.get(schema_id)
        if known is not None and known.schema is not None:
            return known.schema
        schema = self._resolver(self._session.deadline()).schema(content)
        self._cache.put(schema_id, content, schema)
        return schema

    @logbus_errors
    def avro(self, schema_id: int) -> Any:
        """A schema as JSON values, with all that it refers to, as Avro's libraries take it. Raises
        UnknownSchemaError."""
        return self_contained(self.parsed(schema_id))

    def avro_of(self, schema_ids: Iterable[int]) -> Iterator[tuple[int, Any]]:
        """Yields ids and what ``avro`` returns of them, in a few round trips; leaves out ids that
        stand for no schema."""
        left = sorted(schema_ids)
        while left:
            ids, left = left[:_TOGETHER], left[_TOGETHER:]
            known = {each: self._cache.get(each) for each in ids}
            deadline = self._session.deadline()
            found = self._store.contents([each for each in ids if known[each] is None], deadline)
            for schema_id, one in known.items():
                content = found.get(schema_id) if one is None else one.content
                if content is None:
                    continue
                schema = one.schema if one is not None else None
                if schema is None:
                    schema = self._resolver(deadline).schema(content)
                    self._cache.put(schema_id, content, schema)
                with logbus_errors:
                    value = self_contained(schema)
                yield schema_id, value

    def uses(self, schema_id: int, *, deleted: bool = False) -> list[tuple[str, int]]:
        """The subjects and versions that have an id. Raises UnknownSchemaError."""
        self.by_id_now(schema_id)
        return [
            (name, each.version)
            for name, each in self.all_versions(deleted=deleted)
            if each.schema_id == schema_id
        ]

    def referrers(self, subject: str, version: int, *, deleted: bool = False) -> list[int]:
        """The ids of the schemas that refer to a version, in order."""
        return sorted(
            {
                each.schema_id
                for _, each in self.all_versions(deleted=deleted)
                if (subject, version) in each.references
            }
        )

    # -- registration --------------------------------------------------------------------

    @logbus_errors
    def register(
        self,
        subject: str,
        text: str,
        references: Sequence[Reference] = (),
        *,
        normalize: bool = False,
        schema_id: int | None = None,
        version: int | None = None,
        after: int | None = None,
    ) -> RegisteredSchema:
        """Register a schema, or find it registered. ``schema_id`` is for the mode IMPORT; in
        another one ``version`` only says which is expected to be the next. ``after`` is the latest
        version that it was made from: nothing is registered after another one. Raises
        InvalidNameError, InvalidSchemaError, IncompatibleSchemaError, NotPermittedError,
        IdMismatchError, SubjectChangedError."""
        paths.subject(subject)

        def step(deadline: Deadline) -> RegisteredSchema:
            self._store.prepare(deadline)
            self._store.refresh(deadline)
            settings, settings_node = self._store.settings(deadline)
            read = self._store.subject(subject, deadline)
            mode = mode_in_force(read.subject.mode, settings.mode)
            _check_mode(subject, mode, schema_id)
            used = self._used(references, read, deadline)
            content, schema = self._parse(text, references, used, normalize, deadline)
            found = self._find(read.subject, content, schema, normalize, deadline)
            if (
                found is not None
                and schema_id in (None, found.schema_id)
                and version in (None, found.version)
            ):
                return self._registered(subject, found, self.by_id(found.schema_id))
            if after is not None:
                _check_latest(read.subject, after)
            if mode is not Mode.IMPORT:
                _check_version(read.subject, version)
                self._require_compatible(read.subject, schema, settings)
            given = self._store.give_id(content, schema_id, deadline)
            new = SubjectVersion(
                version=next_version(read.subject) if version is None else version,
                schema_id=given.schema_id,
                references=tuple((each.subject, each.version) for each in content.references),
            )
            replaced = self._replaced(read.subject, given.schema_id, deadline)
            changed = added(read.subject, new, without=replaced)
            operations = [
                *([] if settings_node is None else [self._store.check_settings(settings_node)]),
                *given.operations,
                self._store.write(read, changed),
            ]
            for each in used.values():
                if each.subject.name != subject:
                    operations += self._store.hold(each)
            _check_size(operations)
            self._store.tree.transact(
                f"register a schema under {subject}", operations, deadline=deadline
            )
            self._cache.put(given.schema_id, content, schema)
            return self._registered(subject, new, content)

        return self._store.tree.repeat(f"register a schema under {subject}", step)

    @logbus_errors
    def check(
        self,
        subject: str,
        text: str,
        references: Sequence[Reference] = (),
        *,
        version: int | None = None,
        normalize: bool = False,
    ) -> list[VersionFault]:
        """Returns the faults that would keep a schema from being registered, by the compatibility
        of the subject; with ``version``, compared with that one only. A subject without versions
        takes every schema. Raises InvalidSchemaError, and for a ``version`` that there is not
        UnknownSubjectError or UnknownVersionError."""
        deadline = self._session.deadline()
        self._store.refresh(deadline)
        settings, _ = self._store.settings(deadline)
        read = self._store.subject(subject, deadline)
        used = self._used(references, read, deadline)
        _, schema = self._parse(text, references, used, normalize, deadline)
        old: Sequence[SubjectVersion] = read.subject.live
        if version is not None and not (version == LATEST and not old):
            old = [read.subject.find(version)]
        return self._faults(read.subject, schema, old, settings)

    @logbus_errors
    def lookup(
        self,
        subject: str,
        text: str,
        references: Sequence[Reference] = (),
        *,
        normalize: bool = False,
        deleted: bool = False,
    ) -> RegisteredSchema:
        """The version that has a schema. Raises UnknownSubjectError, UnknownSchemaError,
        InvalidSchemaError."""
        deadline = self._session.deadline()
        self._store.refresh(deadline)
        read = self._store.subject(subject, deadline)
        read.subject.seen(deleted=deleted)
        used = self._used(references, read, deadline)
        content, schema = self._parse(text, references, used, normalize, deadline)
        found = self._find(read.subject, content, schema, normalize, deadline, deleted=deleted)
        if found is None:
            raise UnknownSchemaError(f"The subject {subject!r} has no version with this schema.")
        return self._registered(subject, found, self.by_id(found.schema_id))

    # -- settings ------------------------------------------------------------------------

    def settings(self) -> Settings:
        """Returns the settings of all subjects without their own; None in what nobody has set."""
        deadline = self._session.deadline()
        self._store.refresh(deadline)
        return self._store.settings(deadline)[0]

    def compatibility(self, subject: str | None = None) -> Compatibility:
        """Returns the compatibility in force for a subject, or for those without their own."""
        own = None if subject is None else self.subject(subject).compatibility
        return own or self.settings().compatibility or DEFAULT_COMPATIBILITY

    def mode(self, subject: str | None = None) -> Mode:
        """Returns the mode in force for a subject, or for those without their own."""
        own = None if subject is None else self.subject(subject).mode
        return mode_in_force(own, self.settings().mode)

    # -- help ----------------------------------------------------------------------------

    def _used(
        self, references: Sequence[Reference], own: Read, deadline: Deadline
    ) -> dict[str, Read]:
        """The subjects that are referred to, by name. Raises InvalidSchemaError and
        InvalidNameError."""
        if len(references) > MAX_REFERENCES:
            raise InvalidSchemaError(
                f"A schema refers to {MAX_REFERENCES} others at most, got {len(references)}.",
                "references",
            )
        check_characters([each.name for each in references], "references")
        names = dict.fromkeys(each.subject for each in references)
        used = self._store.subjects((name for name in names if name != own.subject.name), deadline)
        if own.subject.name in names:
            used[own.subject.name] = own
        return used

    def _parse(
        self,
        text: str,
        references: Sequence[Reference],
        used: Mapping[str, Read],
        normalize: bool,
        deadline: Deadline,
    ) -> tuple[Content, Schema]:
        """The content that is registered for a text, and its model."""
        fixed = []
        for number, each in enumerate(references):
            try:
                found = used[each.subject].subject.find(each.version)
            except (UnknownSubjectError, UnknownVersionError) as error:
                raise InvalidSchemaError(
                    f"There is nothing to refer to: {error.message}", f"references[{number}]"
                ) from error
            fixed.append(Reference(each.name, each.subject, found.version))
        resolver = self._resolver(deadline, used)
        schema = resolver.schema(Content(text, tuple(fixed)))
        check_readable(schema)
        write: Callable[..., str] = normalized_text if normalize else canonical_text
        return Content(write(schema, known=resolver.known(fixed)), tuple(fixed)), schema

    def _resolver(self, deadline: Deadline, used: Mapping[str, Read] | None = None) -> Resolver:
        subjects = {} if used is None else {name: each.subject for name, each in used.items()}

        def load(name: str, version: int) -> Content:
            if name not in subjects:
                subjects[name] = self._store.subject(name, deadline).subject
            return self.by_id(subjects[name].find(version, deleted=True).schema_id)

        return Resolver(load)

    def _find(
        self,
        subject: Subject,
        content: Content,
        schema: Schema,
        normalize: bool,
        deadline: Deadline,
        *,
        deleted: bool = False,
    ) -> SubjectVersion | None:
        """The latest version of the same content; with ``normalize``, one that means the same."""
        ids = self._store.ids_of(content, deadline)
        found = subject.of_id(ids, deleted=deleted) if ids else None
        if found is None and normalize:
            wanted = normalized_text(schema)
            candidates = subject.versions if deleted else subject.live
            for each in reversed(candidates):
                if normalized_text(self.parsed(each.schema_id)) == wanted:
                    return each
        return found

    def _require_compatible(self, subject: Subject, schema: Schema, settings: Settings) -> None:
        found = self._faults(subject, schema, subject.live, settings)
        if found:
            level = subject.compatibility or settings.compatibility or DEFAULT_COMPATIBILITY
            faults = [str(each) for each in found]
            more = f" (and {len(faults) - 3} more)" if len(faults) > 3 else ""
            raise IncompatibleSchemaError(
                f"The schema breaks the compatibility {level.name} of the subject "
                f"{subject.name!r}: {' '.join(faults[:3])}{more}",
                faults,
            )

    def _faults(
        self,
        subject: Subject,
        schema: Schema,
        old: Sequence[SubjectVersion],
        settings: Settings,
    ) -> list[VersionFault]:
        level = subject.compatibility or settings.compatibility or DEFAULT_COMPATIBILITY
        if level is Compatibility.NONE:
            return []
        compared = old if level.transitive else old[-1:]
        schemas = [OldSchema(each.version, self.parsed(each.schema_id)) for each in compared]
        return check(schema, schemas, level)

    def _replaced(self, subject: Subject, schema_id: int, deadline: Deadline) -> Collection[int]:
        """Soft-deleted versions of an id, which gets a new one; but for those referred to."""
        same = [
            each.version
            for each in subject.versions
            if each.deleted and each.schema_id == schema_id
        ]
        if not same:
            return ()
        referred = {
            reference
            for other in self._store.all_subjects(deadline)
            for each in other.versions
            for reference in each.references
        }
        return [version for version in same if (subject.name, version) not in referred]

    def _registered(
        self, subject: str, version: SubjectVersion, content: Content
    ) -> RegisteredSchema:
        return RegisteredSchema(
            subject=subject,
            version=version.version,
            schema_id=version.schema_id,
            text=content.text,
            references=content.references,
            deleted=version.deleted,
        )


def _check_mode(subject: str, mode: Mode, schema_id: int | None) -> None:
    """Raises NotPermittedError unless the mode lets a schema be registered in this way."""
    wanted = Mode.READWRITE if schema_id is None else Mode.IMPORT
    if mode is not wanted:
        given = "without an id" if schema_id is None else f"with the id {schema_id}"
        raise NotPermittedError(
            f"The subject {subject!r} is in the mode {mode.name}; a schema {given} is registered "
            f"in the mode {wanted.name} only."
        )


def _check_version(subject: Subject, version: int | None) -> None:
    """Raises InvalidSchemaError for a version that is not the next one."""
    if version not in (None, next_version(subject)):
        raise InvalidSchemaError(
            f"The next version of the subject {subject.name!r} is {next_version(subject)}, not "
            f"{version}; leave the version out, or set the mode IMPORT."
        )


def _check_latest(subject: Subject, version: int) -> None:
    """Raises SubjectChangedError unless the latest version is that one."""
    latest = subject.live[-1].version if subject.live else None
    if latest != version:
        raise SubjectChangedError(
            f"A schema was to follow version {version} of the subject {subject.name!r}, whose "
            f"latest version is {latest} by now; make it from that one."
        )


def _check_size(operations: Sequence[Operation]) -> None:
    """Raises SchemaTooLargeError for more than ZooKeeper takes at once."""
    size = size_of(operations)
    if size > MAX_TRANSACTION_BYTES:
        raise SchemaTooLargeError(
            f"The schema, with the versions of its subject and of those that it refers to, takes "
            f"{size:,} bytes, and {MAX_TRANSACTION_BYTES:,} can be changed at once. Delete old "
            "versions permanently, or cut the schema into several."
        )
