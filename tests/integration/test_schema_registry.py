"""The schema registry in a real ZooKeeper: versions, ids, deletions, races, lost replies."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import fastavro
import pytest

from spark_logbus.coordination import paths
from spark_logbus.errors import CoordinationError, InvalidNameError
from spark_logbus.schemas.compatibility import Compatibility
from spark_logbus.schemas.errors import (
    IdMismatchError,
    IncompatibleSchemaError,
    InvalidSchemaError,
    NotConfiguredError,
    NotPermittedError,
    ReferenceExistsError,
    SchemaTooLargeError,
    SubjectDeletedError,
    SubjectNotDeletedError,
    UnknownSchemaError,
    UnknownSubjectError,
    UnknownVersionError,
    VersionDeletedError,
    VersionNotDeletedError,
)
from spark_logbus.schemas.registry import SchemaAdministration, SchemaRegistry
from spark_logbus.schemas.registry.subjects import LATEST, Mode, Reference
from spark_logbus.zookeeper import CorruptNodeError, Session
from tests.servers.zookeeper import MULTI, Proxy, put, session

INT, LONG, TEXT = '"int"', '"long"', '"string"'


def record(*fields: str, name: str = "shop.Order", **types: Any) -> str:
    return json.dumps(
        {
            "type": "record",
            "name": name,
            "fields": [
                {"name": each.rstrip("?"), "type": types.get(each.rstrip("?"), "int")}
                | ({"default": 0} if each.endswith("?") else {})
                for each in fields
            ],
        }
    )


@pytest.fixture
def opened(chroot: str) -> Iterator[Session]:
    with session(chroot) as live:
        yield live


@pytest.fixture
def registry(opened: Session) -> SchemaRegistry:
    return SchemaRegistry(opened)


@pytest.fixture
def admin(opened: Session) -> SchemaAdministration:
    return SchemaAdministration(opened)


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

    def test_an_imported_id_that_was_deleted_comes_back_for_its_schema_only(
        self, registry: SchemaRegistry, admin: SchemaAdministration
    ) -> None:
        registry.register("a", INT)
        admin.delete_subject("a")
        admin.delete_subject("a", permanent=True)
        admin.set_mode(None, Mode.IMPORT)
        with pytest.raises(IdMismatchError):
            registry.register("a", LONG, schema_id=1)
        assert registry.register("a", INT, schema_id=1).schema_id == 1
        assert registry.by_id_now(1).text == INT


class TestSideBySide:
    def test_registries_that_race_give_dense_ids_and_versions(self, chroot: str) -> None:
        each, count = 10, 4
        start = threading.Barrier(count)

        def register(worker: int) -> list[tuple[str, int, int]]:
            with session(chroot) as opened:
                registry = SchemaRegistry(opened)
                SchemaAdministration(opened).set_compatibility("shared", Compatibility.NONE)
                start.wait()
                made = []
                for number in range(each):
                    text = record(f"f{worker}_{number}")
                    for subject in ("shared", f"own{worker}"):
                        SchemaAdministration(opened).set_compatibility(subject, Compatibility.NONE)
                        done = registry.register(subject, text)
                        made.append((subject, done.version, done.schema_id))
                return made

        with ThreadPoolExecutor(count) as pool:
            made = [one for each in pool.map(register, range(count)) for one in each]
        shared = [one for one in made if one[0] == "shared"]
        assert sorted(version for _, version, _ in shared) == list(range(1, each * count + 1))
        assert sorted({schema_id for _, _, schema_id in made}) == list(range(1, each * count + 1))
        assert len({schema_id for _, _, schema_id in shared}) == each * count

    def test_one_schema_registered_at_once_is_registered_once(self, chroot: str) -> None:
        count = 6
        start = threading.Barrier(count)

        def register(_: int) -> tuple[int, int]:
            with session(chroot) as opened:
                start.wait()
                done = SchemaRegistry(opened).register("a", INT)
                return done.version, done.schema_id

        with ThreadPoolExecutor(count) as pool:
            assert set(pool.map(register, range(count))) == {(1, 1)}
        with session(chroot) as opened:
            assert SchemaRegistry(opened).versions("a", deleted=True) == [1]

    def test_a_registration_whose_reply_is_lost_is_done_once(self, chroot: str) -> None:
        with (
            Proxy(chroot.partition("/")[0]) as proxy,
            session(proxy.connect_string(chroot)) as opened,
        ):
            registry = SchemaRegistry(opened)
            registry.register("a", INT)
            proxy.lose_reply(MULTI)
            made = registry.register("a", LONG)
            assert proxy.lost == 1
            assert (made.version, made.schema_id) == (2, 2)
            assert registry.schema_ids("a") == [1, 2]
            assert registry.register("b", '"double"').schema_id == 3

    @pytest.mark.parametrize("permanent", [False, True])
    def test_a_deletion_whose_reply_is_lost_is_done_once(
        self, chroot: str, permanent: bool
    ) -> None:
        with (
            Proxy(chroot.partition("/")[0]) as proxy,
            session(proxy.connect_string(chroot)) as opened,
        ):
            registry, admin = SchemaRegistry(opened), SchemaAdministration(opened)
            registry.register("a", INT)
            if permanent:
                admin.delete_subject("a")
            proxy.lose_reply(MULTI)
            assert admin.delete_subject("a", permanent=permanent) == [1]
            assert proxy.lost == 1
            proxy.lose_reply(MULTI)
            admin.set_mode("a", Mode.READONLY)
            proxy.lose_reply(MULTI)
            assert admin.unset_mode("a") is Mode.READONLY
            assert proxy.lost == 3

    def test_a_reference_made_while_its_target_is_deleted(self, chroot: str) -> None:
        """One of the two comes first: never a reference to nothing."""
        with session(chroot) as opened:
            registry, admin = SchemaRegistry(opened), SchemaAdministration(opened)
            registry.register("item", record(name="I"))
            proceed = _before(registry, "give_id", lambda: admin.delete_version("item", 1))
            with pytest.raises(InvalidSchemaError, match="nothing to refer to"):
                registry.register("o", record("i", i="I", name="O"), [Reference("I", "item", 1)])
            assert proceed == [1]
            registry.register("item", record(name="I"))
            used = [Reference("I", "item", 2)]
            _before(
                admin, "write",
                lambda: SchemaRegistry(opened).register("o", record("i", i="I", name="O"), used),
            )  # fmt: skip
            with pytest.raises(ReferenceExistsError):
                admin.delete_version("item", 2)

    def test_an_id_reused_while_it_is_deleted(self, chroot: str) -> None:
        with session(chroot) as opened:
            registry, admin = SchemaRegistry(opened), SchemaAdministration(opened)
            registry.register("a", INT)
            admin.delete_subject("a")
            _before(admin, "write", lambda: SchemaRegistry(opened).register("b", INT))
            admin.delete_subject("a", permanent=True)
            assert registry.schema_ids("b") == [1]
            assert registry.by_id_now(1).text == INT

    def test_another_registry_sees_at_once_what_one_has_done(self, chroot: str) -> None:
        with session(chroot) as one, session(chroot) as two:
            first, second = SchemaRegistry(one), SchemaRegistry(two)
            made = first.register("a", INT)
            assert second.by_id(made.schema_id).text == INT
            assert second.versions("a") == [1]
            SchemaAdministration(one).delete_subject("a")
            SchemaAdministration(one).delete_subject("a", permanent=True)
            assert second.by_id(1).text == INT  # remembered
            with pytest.raises(UnknownSchemaError):
                second.by_id_now(1)


def _before(owner: Any, name: str, act: Callable[[], object]) -> list[int]:
    """Have ``act`` done once, before the store of ``owner`` is asked for the operation ``name``."""
    original = getattr(owner._store, name)
    done: list[int] = []

    def first(*arguments: Any) -> Any:
        if not done:
            done.append(1)
            act()
        return original(*arguments)

    setattr(owner._store, name, first)
    return done


class TestFaults:
    def test_a_node_that_cannot_be_read_costs_its_subject(
        self, chroot: str, registry: SchemaRegistry, admin: SchemaAdministration
    ) -> None:
        registry.register("a", INT)
        registry.register("b", LONG)
        put(chroot, paths.subject("b"), b"{nonsense")
        put(chroot, f"{paths.SCHEMA_SUBJECTS}/no subject", b"")
        assert registry.subjects() == ["a"]
        with pytest.raises(CorruptNodeError, match="/schemas/subjects/b"):
            registry.versions("b")
        assert registry.register("a", LONG).schema_id == 2
        with pytest.raises(CorruptNodeError):  # nobody knows what b refers to
            admin.delete_version("a", 1)

    def test_a_setting_of_a_later_release_is_not_guessed(
        self, chroot: str, registry: SchemaRegistry
    ) -> None:
        registry.register("a", INT)
        put(chroot, paths.SCHEMA_SETTINGS, b'{"compatibility": "SIDEWAYS"}')
        with pytest.raises(CorruptNodeError, match="'SIDEWAYS'"):
            registry.register("a", LONG)

    def test_without_zookeeper_what_is_remembered_is_there_and_the_rest_ends_in_time(
        self, chroot: str
    ) -> None:
        with Proxy(chroot.partition("/")[0]) as proxy:
            connect = proxy.connect_string(chroot)
            with session(connect, operation_timeout_ms=500) as opened:
                registry = SchemaRegistry(opened)
                registry.register("a", INT)
                proxy.refuse.set()
                proxy.cut()
                assert registry.by_id(1).text == INT
                assert registry.by_id_now(1).text == INT
                assert registry.parsed(1).kind == "int"
                with pytest.raises(CoordinationError, match="did not answer within 500 ms"):
                    registry.register("a", LONG)
                with pytest.raises(CoordinationError):
                    registry.by_id(2)
