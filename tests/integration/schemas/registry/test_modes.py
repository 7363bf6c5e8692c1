"""Modes, in which a subject is not changed, or imported to."""

from __future__ import annotations

import pytest

from avro_columns.compatibility import Compatibility
from spark_logbus.schemas.errors import (
    IdMismatchError,
    NotConfiguredError,
    NotPermittedError,
)
from spark_logbus.schemas.registry import SchemaAdministration, SchemaRegistry
from spark_logbus.schemas.registry.store import MAX_ID
from spark_logbus.schemas.registry.subjects import Mode
from tests.integration.schemas.registry.texts import INT, LONG, TEXT


class TestModes:
    def test_a_read_only_subject_is_not_changed(
        self, registry: SchemaRegistry, admin: SchemaAdministration
    ) -> None:
        registry.register("a", INT)
        admin.set_mode("a", Mode.READONLY)
        assert registry.mode("a") is Mode.READONLY
        for change in (
            lambda: registry.register("a", INT),
            lambda: admin.delete_subject("a"),
            lambda: admin.set_compatibility("a", Compatibility.NONE),
        ):
            with pytest.raises(NotPermittedError, match="READONLY"):
                change()
        registry.register("b", INT)
        admin.set_mode(None, Mode.READONLY)
        with pytest.raises(NotPermittedError):
            registry.register("b", LONG)
        assert admin.unset_mode("a") is Mode.READONLY
        with pytest.raises(NotConfiguredError):
            admin.unset_mode("a")
        assert admin.unset_mode(None) is Mode.READONLY
        assert registry.mode("a") is Mode.READWRITE

    def test_an_import_brings_ids_and_versions(
        self, registry: SchemaRegistry, admin: SchemaAdministration
    ) -> None:
        with pytest.raises(NotPermittedError, match="IMPORT only"):
            registry.register("a", INT, schema_id=40)
        admin.set_mode(None, Mode.IMPORT)
        made = registry.register("a", INT, schema_id=40, version=7)
        assert (made.version, made.schema_id) == (7, 40)
        assert registry.register("a", INT, schema_id=40, version=7) == made
        assert registry.register("a", TEXT, schema_id=12, version=3).version == 3
        assert registry.versions("a") == [3, 7]
        with pytest.raises(IdMismatchError, match="id 40 stands for another"):
            registry.register("a", LONG, schema_id=40)
        with pytest.raises(NotPermittedError, match="version 7 already"):
            registry.register("a", LONG, schema_id=41, version=7)
        with pytest.raises(IdMismatchError):
            registry.register("a", LONG, schema_id=2**31)
        with pytest.raises(NotPermittedError, match="READWRITE only"):
            registry.register("a", LONG)
        admin.set_mode(None, Mode.READWRITE)
        assert registry.register("b", LONG).schema_id == 41
        with pytest.raises(NotPermittedError, match="schemas already"):
            admin.set_mode(None, Mode.IMPORT)
        admin.set_mode(None, Mode.IMPORT, force=True)

    def test_after_the_highest_id_none_is_given(
        self, registry: SchemaRegistry, admin: SchemaAdministration
    ) -> None:
        admin.set_mode("a", Mode.IMPORT)
        registry.register("a", INT, schema_id=MAX_ID)
        with pytest.raises(NotPermittedError, match="none beyond it"):
            registry.register("b", LONG)
        assert registry.register("b", INT).schema_id == MAX_ID

    def test_a_mode_that_overrides_leaves_no_subject_writable(
        self, registry: SchemaRegistry, admin: SchemaAdministration
    ) -> None:
        admin.set_mode("a", Mode.READWRITE)
        admin.set_mode(None, Mode.READONLY_OVERRIDE)
        for change in (
            lambda: registry.register("a", INT),
            lambda: admin.set_compatibility("a", Compatibility.NONE),
        ):
            with pytest.raises(NotPermittedError, match="READONLY_OVERRIDE"):
                change()
        admin.unset_mode(None)
        assert registry.register("a", INT).version == 1

    def test_an_imported_id_that_was_deleted_comes_back_for_its_schema_only(
        self, registry: SchemaRegistry, admin: SchemaAdministration
    ) -> None:
        registry.register("a", INT)
        admin.delete_subject("a")
        with pytest.raises(NotPermittedError, match="schemas already"):
            admin.set_mode(None, Mode.IMPORT)
        admin.delete_subject("a", permanent=True)
        admin.set_mode(None, Mode.IMPORT)
        with pytest.raises(IdMismatchError):
            registry.register("a", LONG, schema_id=1)
        assert registry.register("a", INT, schema_id=1).schema_id == 1
        assert registry.by_id_now(1).text == INT
