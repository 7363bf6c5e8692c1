"""Versions and ids in a real ZooKeeper, what is compatible, and what refers to what."""

from __future__ import annotations

import json

import fastavro
import pytest

from avro_columns.compatibility import Compatibility
from avro_columns.values.arrow_types import arrow_schema
from spark_logbus.errors import InvalidNameError
from spark_logbus.schemas.errors import (
    IncompatibleSchemaError,
    InvalidSchemaError,
    NotConfiguredError,
    ReferenceExistsError,
    SchemaTooLargeError,
    UnknownSchemaError,
    UnknownSubjectError,
    UnknownVersionError,
)
from spark_logbus.schemas.registry import SchemaAdministration, SchemaRegistry
from spark_logbus.schemas.registry.subjects import LATEST, Reference
from tests.integration.schemas.registry.texts import INT, TEXT, record


class TestVersionsAndIds:
    def test_versions_count_within_a_subject_and_ids_over_all(
        self, registry: SchemaRegistry
    ) -> None:
        assert registry.subjects() == []
        first = registry.register("a", record("x"))
        second = registry.register("a", record("x", "y?"))
        other = registry.register("b", TEXT)
        assert [(e.version, e.schema_id) for e in (first, second, other)] == [
            (1, 1), (2, 2), (1, 3)]  # fmt: skip
        assert registry.subjects() == ["a", "b"]
        assert registry.subjects("b") == ["b"]
        assert registry.versions("a") == [1, 2]
        assert registry.schema_ids("a") == [1, 2]
        assert registry.version("a") == second
        assert registry.version("a", 1) == first
        assert registry.by_id(3).text == TEXT

    def test_one_schema_has_one_id_under_all_subjects(self, registry: SchemaRegistry) -> None:
        first = registry.register("a", record("x"))
        again = registry.register("a", json.dumps(json.loads(record("x")), indent=3))
        assert again == first
        elsewhere = registry.register("b", record("x"))
        assert (elsewhere.version, elsewhere.schema_id) == (1, 1)
        assert registry.uses(1) == [("a", 1), ("b", 1)]
        assert registry.register("b", record("x", "y?")).schema_id == 2

    def test_a_schema_that_means_the_same_is_found_if_that_is_wanted(
        self, registry: SchemaRegistry
    ) -> None:
        first = registry.register("a", '{"type": "int", "b": 1, "a": 2}')
        assert registry.register("a", '{"type": "int", "a": 2, "b": 1}').version == 2
        assert registry.register("c", '{"type": "int", "b": 1, "a": 2}').schema_id == 1
        found = registry.register("c", '{"type": "int", "a": 2, "b": 1}', normalize=True)
        assert (found.version, found.schema_id) == (1, first.schema_id)
        assert registry.lookup("c", '{"a": 2, "b": 1, "type": "int"}', normalize=True) == found

    def test_a_schema_is_looked_up_under_its_subject(self, registry: SchemaRegistry) -> None:
        first = registry.register("a", INT)
        assert registry.lookup("a", ' { "type" : "int" } ') == first
        with pytest.raises(UnknownSchemaError, match="'a' has no version with this schema"):
            registry.lookup("a", TEXT)
        with pytest.raises(UnknownSubjectError):
            registry.lookup("b", INT)

    def test_what_is_not_there(self, registry: SchemaRegistry) -> None:
        with pytest.raises(UnknownSubjectError, match="no subject 'a'"):
            registry.versions("a")
        with pytest.raises(UnknownSchemaError, match="no schema with the id 7"):
            registry.by_id(7)
        for number in (0, 2**31, 2**63, 10**30):
            with pytest.raises(UnknownSchemaError):
                registry.by_id(number)
        registry.register("a", INT)
        with pytest.raises(UnknownVersionError, match="no version 2; its versions are 1"):
            registry.version("a", 2)

    @pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a b", "é", "x" * 250, "a\n"])
    def test_a_name_that_is_none(self, registry: SchemaRegistry, name: str) -> None:
        with pytest.raises(InvalidNameError):
            registry.register(name, INT)
        with pytest.raises(InvalidNameError):
            registry.versions(name)

    def test_a_parsed_schema_reads_data(self, registry: SchemaRegistry) -> None:
        made = registry.register("a", record("x"))
        assert registry.parsed(made.schema_id) is registry.parsed(made.schema_id)
        fastavro.parse_schema(registry.avro(made.schema_id))

    def test_a_large_schema_is_kept_whole(self, registry: SchemaRegistry) -> None:
        text = record("x").replace('"int"', '{"type": "int", "q": "' + '\\"' * 190_000 + '"}')
        made = registry.register("a", text)
        assert len(made.text) > 380_000
        assert SchemaRegistry(registry._session).by_id(made.schema_id).text == made.text

    def test_what_does_not_fit_into_a_transaction_is_refused_with_the_remedy(
        self, registry: SchemaRegistry, admin: SchemaAdministration
    ) -> None:
        target = {"type": "record", "name": "T", "fields": []}
        registry.register("t", json.dumps(target))
        used = [Reference("T" * 20_000, "t", 1)]
        text = record("x").replace('"int"', '{"type": "int", "q": "' + '\\"' * 199_000 + '"}')
        with pytest.raises(SchemaTooLargeError, match="900,000 can be changed at once"):
            registry.register("a", text, used * 6)
        assert registry.subjects() == ["t"]


class TestCompatibility:
    def test_an_incompatible_schema_is_refused_with_its_faults(
        self, registry: SchemaRegistry
    ) -> None:
        registry.register("a", record("x"))
        with pytest.raises(IncompatibleSchemaError) as refused:
            registry.register("a", record("x", "y"))
        assert "BACKWARD of the subject 'a'" in refused.value.message
        assert "READER_FIELD_MISSING_DEFAULT_VALUE at fields[1]" in refused.value.faults[0]
        assert registry.versions("a") == [1]
        assert registry.check("a", record("x", "y?")) == []
        [fault] = registry.check("a", record("x", "y"))
        assert (fault.version, fault.fault.place) == (1, "fields[1]")
        assert registry.check("new", record("x")) == []
        assert registry.check("new", record("x"), version=LATEST) == []
        with pytest.raises(UnknownVersionError):
            registry.check("a", record("x"), version=5)

    def test_a_subjects_own_setting_comes_before_that_of_all(
        self, registry: SchemaRegistry, admin: SchemaAdministration
    ) -> None:
        assert registry.compatibility() is Compatibility.BACKWARD
        admin.set_compatibility(None, Compatibility.FULL)
        admin.set_compatibility("a", Compatibility.NONE)
        assert registry.compatibility() is Compatibility.FULL
        assert registry.compatibility("a") is Compatibility.NONE
        assert registry.compatibility("b") is Compatibility.FULL
        assert registry.subjects(deleted=True) == []  # a has settings, and no versions
        registry.register("a", INT)
        registry.register("a", TEXT)
        assert admin.unset_compatibility("a") is Compatibility.NONE
        with pytest.raises(IncompatibleSchemaError, match="FULL"):
            registry.register("a", INT.replace("int", "null"))
        with pytest.raises(NotConfiguredError, match="'a' has no compatibility of its own"):
            admin.unset_compatibility("a")
        assert admin.unset_compatibility(None) is Compatibility.FULL
        assert admin.unset_compatibility(None) is Compatibility.BACKWARD
        assert registry.settings().compatibility is None

    def test_transitive_compatibility_looks_at_all_versions(
        self, registry: SchemaRegistry, admin: SchemaAdministration
    ) -> None:
        for text in (record("x"), record("x", "y?")):
            registry.register("a", text)
        assert registry.check("a", record("x", "y")) == []
        admin.set_compatibility("a", Compatibility.BACKWARD_TRANSITIVE)
        [fault] = registry.check("a", record("x", "y"))
        assert fault.version == 1
        assert registry.check("a", record("x", "y"), version=2) == []


class TestReferences:
    def test_a_schema_refers_to_another_subjects_version(self, registry: SchemaRegistry) -> None:
        item = registry.register("item", record("sku", name="shop.Item"))
        used = [Reference("shop.Item", "item", LATEST)]
        order = registry.register("order", record("line", line="shop.Item"), used)
        assert order.references == (Reference("shop.Item", "item", 1),)
        assert '"type":"Item"' in order.text
        assert registry.by_id(order.schema_id).references == order.references
        whole = registry.avro(order.schema_id)
        assert whole["fields"][0]["type"]["fields"][0]["name"] == "sku"
        fastavro.parse_schema(whole)
        assert registry.referrers("item", 1) == [order.schema_id]
        assert registry.referrers("order", 1) == []
        assert item.schema_id != order.schema_id
        again = registry.lookup("order", record("line", line="shop.Item"), order.references)
        assert again == order

    def test_columns_are_those_of_all_that_is_referred_to(self, registry: SchemaRegistry) -> None:
        registry.register("item", record("sku", name="shop.Item"))
        used = [Reference("shop.Item", "item", 1)]
        order = registry.register("order", record("line", line="shop.Item"), used)
        columns = arrow_schema(registry.parsed(order.schema_id))
        assert columns == arrow_schema(registry.avro(order.schema_id))
        assert [one.name for one in columns.field("line").type] == ["sku"]

    def test_compatibility_goes_through_references(self, registry: SchemaRegistry) -> None:
        for text in (record("a", name="I"), record("a", "b?", name="I")):
            registry.register("item", text)
        registry.register("order", record("i", i="I", name="O"), [Reference("I", "item", 1)])
        registry.register("order", record("i", i="I", name="O"), [Reference("I", "item", 2)])
        assert registry.versions("order") == [1, 2]
        registry.register("item", record(name="I"))
        registry.register("item", record("z?", name="I"))
        text = record("i", i="I", name="O")
        assert registry.check("order", text, [Reference("I", "item", 4)]) == []

    def test_a_reference_to_nothing_is_refused_with_its_place(
        self, registry: SchemaRegistry
    ) -> None:
        registry.register("item", record(name="I"))
        for reference in (Reference("I", "item", 2), Reference("I", "none", 1)):
            used = [Reference("I", "item", 1), reference]
            with pytest.raises(InvalidSchemaError) as refused:
                registry.register("order", record("i", i="I"), used)
            assert refused.value.place == "references[1]"
        with pytest.raises(InvalidSchemaError, match=r"no type 'shop\.I'"):
            registry.register("order", record("i", i="I"), [Reference("I", "item", 1)])

    def test_two_versions_of_one_type_are_refused(
        self, registry: SchemaRegistry, admin: SchemaAdministration
    ) -> None:
        registry.register("i", record(name="I"))
        registry.register("i", record("a?", name="I"))
        registry.register("a", record("i", i="I", name="A"), [Reference("I", "i", 1)])
        used = [Reference("A", "a", 1), Reference("I", "i", 2)]
        with pytest.raises(InvalidSchemaError, match="'I' comes with two references"):
            registry.register("b", record("a", a="A", name="B"), used)

    def test_what_is_referred_to_cannot_be_deleted(
        self, registry: SchemaRegistry, admin: SchemaAdministration
    ) -> None:
        registry.register("item", record(name="I"))
        registry.register("order", record("i", i="I", name="O"), [Reference("I", "item", 1)])
        for delete in (lambda: admin.delete_version("item", 1),
                       lambda: admin.delete_subject("item")):  # fmt: skip
            with pytest.raises(ReferenceExistsError, match="version 1 of 'order'"):
                delete()
        admin.delete_subject("order")
        admin.delete_subject("item")
        with pytest.raises(ReferenceExistsError):
            admin.delete_subject("item", permanent=True)
        admin.delete_subject("order", permanent=True)
        admin.delete_subject("item", permanent=True)
        assert registry.subjects(deleted=True) == []

    @pytest.mark.long
    def test_a_chain_of_too_many_references_is_refused(self, registry: SchemaRegistry) -> None:
        def register(number: int) -> None:
            before = Reference(f"R{number - 1}", f"s{number - 1}", 1)
            text = record("a", a=f"R{number - 1}", name=f"R{number}")
            registry.register(f"s{number}", text, [before])

        registry.register("s0", record(name="R0"))
        for number in range(1, 80):
            register(number)
        with pytest.raises(InvalidSchemaError, match="nested in more than"):
            register(80)
