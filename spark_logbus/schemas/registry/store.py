"""The registry's nodes in ZooKeeper: reads, and the pieces of the transactions that change them.

Two registries may do anything side by side, because each change is one transaction that states
what it was decided on:

* a subject is one node with all its versions, written at the version of the node that was read: of
  two registrations one comes first, and the other is decided anew;
* a new id is the last one plus one, and the node of the last id is written in the same transaction
  as that of the id, so no id is given twice and none is left out;
* a content's node says which id it has. Whoever uses an id that is there writes the content's node
  again as it is, and whoever refers to a version its subject's node: so a permanent deletion, which
  has looked for uses, is decided anew when one came in between.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from avro_columns.compatibility import Compatibility
from spark_logbus.coordination import paths
from spark_logbus.coordination.payloads import (
    ContentPayload,
    LastIdPayload,
    SchemaPayload,
    SchemaReferencePayload,
    SchemaSettingsPayload,
    SubjectPayload,
    SubjectVersionPayload,
    decode,
    encode,
)
from spark_logbus.retry import Deadline
from spark_logbus.schemas.errors import (
    IdMismatchError,
    NotPermittedError,
    UnknownSchemaError,
)
from spark_logbus.schemas.registry.subjects import Content, Mode, Reference, Subject, SubjectVersion
from spark_logbus.zookeeper.nodes import Node, Nodes, own_names
from spark_logbus.zookeeper.session import Session
from spark_logbus.zookeeper.transactions import Check, Create, Delete, Operation, SetData
from spark_logbus.zookeeper.unreadable import CorruptNodeError

MAX_ID = (1 << 31) - 1

_ROOTS = (
    paths.SCHEMA_SETTINGS,
    paths.SCHEMA_IDS,
    paths.SCHEMA_CONTENTS,
    paths.SCHEMA_SUBJECTS,
)


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings of all subjects without their own; None where nobody has set it."""

    compatibility: Compatibility | None = None
    mode: Mode | None = None


@dataclass(frozen=True, slots=True)
class Read:
    """A subject as it was read, with its node, None where there is none."""

    subject: Subject
    node: Node | None


@dataclass(frozen=True, slots=True)
class IdGiven:
    """An id for a content, and the operations that give it, or hold on to it."""

    schema_id: int
    operations: list[Operation]


class SchemaStore:
    """Reads nodes and makes operations. Thread-safe; holds nothing itself."""

    def __init__(self, session: Session) -> None:
        self.tree = Nodes(session)
        self._unreadable = session.unreadable

    def prepare(self, deadline: Deadline) -> None:
        """See to it that the nodes above all others are there."""
        found = self.tree.get_many(_ROOTS, deadline=deadline)
        for path in _ROOTS:
            if found[path] is None:
                self.tree.ensure(path, deadline=deadline)

    # -- reads ---------------------------------------------------------------------------

    def refresh(self, deadline: Deadline) -> None:
        """Make the next reads see what other registries have done before now."""
        self.tree.sync(deadline=deadline)

    def settings(self, deadline: Deadline) -> tuple[Settings, Node | None]:
        path = paths.SCHEMA_SETTINGS
        node = self.tree.get(path, deadline=deadline)
        if node is None or not node.data:
            return Settings(), node
        payload = decode(SchemaSettingsPayload, node.data, path=path)
        return Settings(
            _compatibility(payload.compatibility, path), _mode(payload.mode, path)
        ), node

    def subject(self, name: str, deadline: Deadline) -> Read:
        return self.subjects([name], deadline)[name]

    def subjects(self, names: Iterable[str], deadline: Deadline) -> dict[str, Read]:
        by_path = {paths.subject(name): name for name in names}
        found = self.tree.get_many(by_path, deadline=deadline)
        return {name: _read(name, path, found[path]) for path, name in by_path.items()}

    def names(self, deadline: Deadline) -> list[str]:
        """Returns the names of all subjects, also of those with settings only."""
        return own_names(self.tree, paths.SCHEMA_SUBJECTS, "subject", deadline=deadline)

    def all_subjects(self, deadline: Deadline) -> list[Subject]:
        """Returns all subjects in the order of their names. Raises CorruptNodeError where one
        cannot be read: nobody knows what it uses."""
        return [each.subject for each in self.subjects(self.names(deadline), deadline).values()]

    def readable_subjects(self, names: Iterable[str], deadline: Deadline) -> list[Subject]:
        """Returns the subjects that can be read, and reports the others."""
        by_path = {paths.subject(name): name for name in names}
        readable = []
        for path, node in self.tree.get_many(by_path, deadline=deadline).items():
            try:
                readable.append(_read(by_path[path], path, node).subject)
            except CorruptNodeError as failure:
                self._unreadable.met(path, failure, instead="Its subject is passed over.")
                continue
            self._unreadable.in_order(path)
        return readable

    def content(self, schema_id: int, deadline: Deadline) -> Content:
        """Returns the schema with that id. Raises UnknownSchemaError."""
        path = paths.schema(schema_id)
        node = self.tree.get(path, deadline=deadline) if schema_id <= MAX_ID else None
        found = _content(path, node)
        if found is None:
            gone = "" if node is None else " It was deleted permanently."
            raise UnknownSchemaError(f"There is no schema with the id {schema_id}.{gone}")
        return found

    def contents(self, ids: Iterable[int], deadline: Deadline) -> dict[int, Content]:
        """Returns schemas by id, in a few round trips; leaves out ids that stand for none."""
        by_path = {paths.schema(each): each for each in ids if each <= MAX_ID}
        found = self.tree.get_many(by_path, deadline=deadline)
        contents = {each: _content(path, found[path]) for path, each in by_path.items()}
        return {each: content for each, content in contents.items() if content is not None}

    def ids_of(self, content: Content, deadline: Deadline) -> list[int]:
        """The ids that a content has."""
        path = paths.schema_content(content.digest)
        return _ids(path, self.tree.get(path, deadline=deadline))

    def last_id(self, deadline: Deadline) -> int:
        return _last_id(self.tree.get(paths.SCHEMA_IDS, deadline=deadline))[0]

    # -- operations of transactions ------------------------------------------------------

    def give_id(self, content: Content, wanted: int | None, deadline: Deadline) -> IdGiven:
        """The id that ``content`` has, or a new one; ``wanted`` if that is not None. Raises
        IdMismatchError when that one is of another content, NotPermittedError when there is no new
        one."""
        path = paths.schema_content(content.digest)
        nodes = self.tree.get_many([path, paths.SCHEMA_IDS], deadline=deadline)
        node, last_node = nodes[path], nodes[paths.SCHEMA_IDS]
        ids = _ids(path, node)
        if node is not None and ids and (wanted is None or wanted in ids):
            schema_id = ids[0] if wanted is None else wanted
            return IdGiven(schema_id, [SetData(path, node.data, node.version)])
        last_id, last_version = _last_id(last_node)
        if wanted is None and last_id == MAX_ID:
            raise NotPermittedError(
                f"The id {MAX_ID} was given, by an import, and there is none beyond it. Import the "
                "schemas with lower ids into a registry of another chroot."
            )
        schema_id = last_id + 1 if wanted is None else wanted
        if not 0 < schema_id <= MAX_ID:
            raise IdMismatchError(f"An id is a number from 1 to {MAX_ID}, got {schema_id}.")
        data = encode(ContentPayload(ids=[*ids, schema_id]))
        operations: list[Operation] = [
            Create(path, data) if node is None else SetData(path, data, node.version),
            # Not looked at before: where it is taken by now, all is read again.
            Create(paths.schema(schema_id), encode(_schema_payload(content)))
            if wanted is None
            else self._give(wanted, content, deadline),
            SetData(
                paths.SCHEMA_IDS,
                encode(LastIdPayload(last_id=max(last_id, schema_id))),
                last_version,
            ),
        ]
        return IdGiven(schema_id, operations)

    def _give(self, schema_id: int, content: Content, deadline: Deadline) -> Operation:
        """Let an id stand for a content, if it is free, or did so before it was deleted."""
        path = paths.schema(schema_id)
        data = encode(_schema_payload(content))
        node = self.tree.get(path, deadline=deadline)
        if node is None:
            return Create(path, data)
        if decode(SchemaPayload, node.data, path=path).deleted == content.digest:
            return SetData(path, data, node.version)
        raise IdMismatchError(
            f"The id {schema_id} stands for another schema, or did before that was deleted; an id "
            "is never given to a second one."
        )

    def take_ids(self, ids: Collection[int], deadline: Deadline) -> list[Operation]:
        """Let ids that nothing uses stand for nothing any more. The operations fail when something
        has come to use them since: call this first, and then look for uses."""
        operations: list[Operation] = []
        by_path: dict[str, set[int]] = {}
        for schema_id in ids:
            try:
                content = self.content(schema_id, deadline)
            except UnknownSchemaError:
                continue  # taken by another deletion, which has changed the subject too
            by_path.setdefault(paths.schema_content(content.digest), set()).add(schema_id)
            gone = SchemaPayload(deleted=content.digest)
            operations.append(SetData(paths.schema(schema_id), encode(gone)))
        for path, node in self.tree.get_many(by_path, deadline=deadline).items():
            if node is None:
                continue
            left = [each for each in _ids(path, node) if each not in by_path[path]]
            operations.append(
                SetData(path, encode(ContentPayload(ids=left)), node.version)
                if left
                else Delete(path, node.version)
            )
        return operations

    def write(self, before: Read, after: Subject) -> Operation:
        """The subject as it is to be, on the condition that it is as it was read. A subject of
        which nothing is left has no node."""
        path = paths.subject(after.name)
        if before.node is None:
            return Create(path, encode(_payload(after)))
        if not after.versions and after.compatibility is None and after.mode is None:
            return Delete(path, before.node.version)
        return SetData(path, encode(_payload(after)), before.node.version)

    def hold(self, read: Read) -> list[Operation]:
        """See to it that who deletes of the subject has to look again."""
        if read.node is None:
            return []
        path = paths.subject(read.subject.name)
        return [SetData(path, read.node.data, read.node.version)]

    def write_settings(self, before: Node, after: Settings) -> Operation:
        payload = SchemaSettingsPayload(
            compatibility=_name(after.compatibility), mode=_name(after.mode)
        )
        return SetData(paths.SCHEMA_SETTINGS, encode(payload), before.version)

    def check_settings(self, node: Node) -> Operation:
        return Check(paths.SCHEMA_SETTINGS, node.version)


# -- payloads -----------------------------------------------------------------------------


def _read(name: str, path: str, node: Node | None) -> Read:
    if node is None:
        return Read(Subject(name), None)
    payload = decode(SubjectPayload, node.data, path=path)
    versions = tuple(
        SubjectVersion(each.version, each.id, each.deleted, tuple(each.references))
        for each in payload.versions
    )
    compatibility = _compatibility(payload.compatibility, path)
    return Read(Subject(name, versions, compatibility, _mode(payload.mode, path)), node)


def _payload(subject: Subject) -> SubjectPayload:
    return SubjectPayload(
        versions=[
            SubjectVersionPayload(
                version=each.version,
                id=each.schema_id,
                deleted=each.deleted,
                references=list(each.references),
            )
            for each in subject.versions
        ],
        compatibility=_name(subject.compatibility),
        mode=_name(subject.mode),
    )


def _content(path: str, node: Node | None) -> Content | None:
    """Decodes a schema's node; None for an id that was never given, or was deleted permanently."""
    payload = None if node is None else decode(SchemaPayload, node.data, path=path)
    if payload is None or payload.deleted:
        return None
    references = (Reference(each.name, each.subject, each.version) for each in payload.references)
    return Content(payload.schema, tuple(references))


def _schema_payload(content: Content) -> SchemaPayload:
    return SchemaPayload(
        schema=content.text,
        references=[
            SchemaReferencePayload(name=each.name, subject=each.subject, version=each.version)
            for each in content.references
        ],
    )


def _ids(path: str, node: Node | None) -> list[int]:
    return [] if node is None else decode(ContentPayload, node.data, path=path).ids


def _last_id(node: Node | None) -> tuple[int, int]:
    """The last id that was given, and the version of the node that says so."""
    if node is None:
        return 0, 0  # removed meanwhile: the transaction will fail, and be decided anew
    if not node.data:
        return 0, node.version
    return decode(LastIdPayload, node.data, path=paths.SCHEMA_IDS).last_id, node.version


def _name(value: Compatibility | Mode | None) -> str | None:
    return None if value is None else value.value


def _compatibility(name: str | None, path: str) -> Compatibility | None:
    try:
        return None if name is None else Compatibility(name)
    except ValueError as error:
        raise _unknown(name, path) from error


def _mode(name: str | None, path: str) -> Mode | None:
    try:
        return None if name is None else Mode(name)
    except ValueError as error:
        raise _unknown(name, path) from error


def _unknown(name: str | None, path: str) -> CorruptNodeError:
    return CorruptNodeError(
        f"The ZooKeeper node {path} holds {name!r}, which this release does not know. Use a newer "
        "one, or repair the node by hand."
    )
