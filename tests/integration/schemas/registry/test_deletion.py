"""Versions and subjects that are deleted, softly and for good."""

from __future__ import annotations

import pytest

from avro_columns.compatibility import Compatibility
from spark_logbus.schemas.errors import (
    SubjectDeletedError,
    SubjectNotDeletedError,
    UnknownSchemaError,
    UnknownSubjectError,
    UnknownVersionError,
    VersionDeletedError,
    VersionNotDeletedError,
)
from spark_logbus.schemas.registry import SchemaAdministration, SchemaRegistry
from spark_logbus.schemas.registry.subjects import LATEST
from tests.integration.schemas.registry.texts import INT, LONG, record


class TestDeletion:
    def test_a_soft_deletion_hides_a_version_and_keeps_its_id(
        self, registry: SchemaRegistry, admin: SchemaAdministration
    ) -> None:
        registry.register("a", INT)
        registry.register("a", LONG)
        assert admin.delete_version("a", 1) == 1
        assert registry.versions("a") == [2]
        assert registry.versions("a", deleted=True) == [1, 2]
        assert registry.by_id_now(1).text == INT
        assert registry.version("a", 1, deleted=True).deleted
        with pytest.raises(UnknownVersionError):
            registry.version("a", 1)
        with pytest.raises(VersionDeletedError):
            admin.delete_version("a", 1)
        assert admin.delete_version("a", LATEST) == 2
        with pytest.raises(UnknownSubjectError, match="soft-deleted"):
            registry.versions("a")
        assert registry.subjects() == []
        assert registry.subjects(deleted=True) == registry.subjects(deleted_only=True) == ["a"]
        with pytest.raises(SubjectDeletedError):
            admin.delete_subject("a")

    def test_a_permanent_deletion_needs_a_soft_one_first(
        self, registry: SchemaRegistry, admin: SchemaAdministration
    ) -> None:
        registry.register("a", INT)
        registry.register("a", LONG)
        with pytest.raises(SubjectNotDeletedError, match="2 versions"):
            admin.delete_subject("a", permanent=True)
        with pytest.raises(VersionNotDeletedError):
            admin.delete_version("a", 1, permanent=True)
        with pytest.raises(UnknownVersionError):
            admin.delete_version("a", 3, permanent=True)
        with pytest.raises(UnknownSubjectError):
            admin.delete_subject("b", permanent=True)
        assert admin.delete_subject("a") == [1, 2]
        assert admin.delete_version("a", 1, permanent=True) == 1
        assert admin.delete_subject("a", permanent=True) == [2]
        with pytest.raises(UnknownSubjectError):
            admin.delete_subject("a", permanent=True)

    def test_an_id_that_was_deleted_permanently_is_never_given_again(
        self, registry: SchemaRegistry, admin: SchemaAdministration
    ) -> None:
        registry.register("a", INT)
        registry.register("b", INT)
        admin.delete_subject("a")
        admin.delete_subject("a", permanent=True)
        assert registry.by_id_now(1).text == INT  # b has it
        admin.delete_subject("b")
        admin.delete_subject("b", permanent=True)
        with pytest.raises(UnknownSchemaError, match="deleted permanently"):
            registry.by_id_now(1)
        with pytest.raises(UnknownSchemaError):
            registry.by_id(1)
        assert registry.register("a", INT).schema_id == 2
        assert registry.register("a", LONG).version == 2

    def test_a_schema_that_comes_back_has_its_id_and_a_new_version(
        self, registry: SchemaRegistry, admin: SchemaAdministration
    ) -> None:
        registry.register("a", INT)
        registry.register("a", LONG)
        admin.delete_version("a", 1)
        admin.set_compatibility("a", Compatibility.NONE)
        back = registry.register("a", INT)
        assert (back.version, back.schema_id) == (3, 1)
        assert registry.versions("a", deleted=True) == [2, 3]

    def test_a_subject_of_many_versions_is_deleted_whole(
        self, registry: SchemaRegistry, admin: SchemaAdministration
    ) -> None:
        for number in range(45):
            registry.register("a", record(*(f"f{each}?" for each in range(number))))
        admin.set_compatibility("a", Compatibility.FULL)
        assert admin.delete_subject("a") == list(range(1, 46))
        assert admin.delete_subject("a", permanent=True) == list(range(1, 46))
        assert registry.compatibility("a") is Compatibility.BACKWARD
        assert registry.register("a", INT).version == 1
