"""Schemas of mirrored topics: the same subjects, versions and contents in the target.

Ids are the same wherever they are free in the target, so that also values which hold ids can be
copied to the byte. A subject that is copied is in the mode IMPORT in the target, in which no other
program gives it versions, unless an id is taken there: then its schemas get other ids.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from avro_columns.compatibility import Compatibility
from spark_logbus.errors import InvalidRequestError
from spark_logbus.mirror.source.source import NO_SCHEMAS, TargetSchemaIds
from spark_logbus.schemas.errors import IdMismatchError
from spark_logbus.schemas.registry import SchemaRegistry
from spark_logbus.schemas.registry.administration import SchemaAdministration
from spark_logbus.schemas.registry.subjects import Content, Mode, Subject, SubjectVersion
from spark_logbus.topic_schemas import PLAIN, TopicSchemas
from spark_logbus.zookeeper import Session

logger = logging.getLogger(__name__)


class SchemaCopier:
    """Copies subjects, and knows ids. Not thread-safe; the sessions are shared, not owned."""

    def __init__(self, source: Session, target: Session) -> None:
        self._source = SchemaRegistry(source)
        self._target = SchemaRegistry(target)
        self._administration = SchemaAdministration(target)
        self._copied: dict[str, tuple[Subject, TargetSchemaIds]] = {}

    def copy_schemas(self, topic: str, config: Mapping[str, str]) -> TargetSchemaIds:
        """Have the target know all schemas of a topic with that configuration; the ids of those of
        its values. Raises InvalidRequestError where the target has others."""
        schemas = TopicSchemas.from_topic_config(config)
        if schemas is PLAIN:
            return NO_SCHEMAS
        if schemas.key_subject is not None:
            keys = self._copy_subject(schemas.key_subject)
            if keys.clash is not None:
                raise InvalidRequestError(
                    f"Keys of the topic {topic} hold the ids of their schemas, which therefore "
                    f"have to be the same in the target: {keys.clash}"
                )
        if schemas.value_subject is None:
            return NO_SCHEMAS
        return self._copy_subject(schemas.value_subject)

    def _copy_subject(self, name: str) -> TargetSchemaIds:
        source = self._source.subject(name)
        known = self._copied.get(name)
        if known is not None and known[0] == source:
            return known[1]
        by_source: dict[int, int] = {}
        clash = None
        there = {each.version: each for each in self._target.subject(name).versions}
        for version in source.versions:
            content = self._source.by_id(version.schema_id)
            for reference in content.references:
                if reference.subject != name:
                    self._copy_subject(reference.subject)
            if version.version in there:
                schema_id = self._same(name, version, content, there[version.version])
            else:
                schema_id = self._register(name, version, content)
            by_source[version.schema_id] = schema_id
            if schema_id != version.schema_id:
                clash = (
                    f"version {version.version} of the subject {name!r} has the id "
                    f"{version.schema_id} in the source, and {schema_id} in the target. Copy the "
                    "topic into a cluster in which that id is free."
                )
        found = TargetSchemaIds(by_source, clash)
        self._copied[name] = (source, found)
        return found

    def _same(
        self, name: str, version: SubjectVersion, content: Content, there: SubjectVersion
    ) -> int:
        """The id of a version that the target has already."""
        if self._target.by_id(there.schema_id) != content:
            raise InvalidRequestError(
                f"Version {version.version} of the subject {name!r} is another schema in the "
                "target than in the source. Delete the subject there permanently, or mirror into "
                "a cluster without it."
            )
        return there.schema_id

    def _register(self, name: str, version: SubjectVersion, content: Content) -> int:
        own = self._target.subject(name)
        if self._target.mode(name) is not Mode.IMPORT:
            self._administration.set_mode(name, Mode.IMPORT, force=True)
        try:
            registered = self._target.register(
                name,
                content.text,
                content.references,
                schema_id=version.schema_id,
                version=version.version,
            )
        except IdMismatchError as error:
            logger.warning(
                "Version %d of the subject %s gets another id in the target than %d, which it has "
                "in the source. %s", version.version, name, version.schema_id, error,
            )  # fmt: skip
            # What was compatible in the source, by whatever was set there then, is not judged.
            self._administration.set_mode(name, Mode.READWRITE)
            self._administration.set_compatibility(name, Compatibility.NONE)
            registered = self._target.register(
                name, content.text, content.references, version=version.version
            )
            self._administration.set_mode(name, own.mode or Mode.READWRITE)
            self._administration.set_compatibility(name, self._source.compatibility(name))
        return registered.schema_id
