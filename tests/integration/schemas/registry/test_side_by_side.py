"""Registries that race in one ZooKeeper, and whose replies are lost."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from avro_columns.compatibility import Compatibility
from spark_logbus.schemas.errors import (
    InvalidSchemaError,
    ReferenceExistsError,
    UnknownSchemaError,
)
from spark_logbus.schemas.registry import SchemaAdministration, SchemaRegistry
from spark_logbus.schemas.registry.subjects import Mode, Reference
from tests.integration.schemas.registry.texts import INT, LONG, record
from tests.servers.zookeeper import MULTI, Proxy, session


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
        """Lets one of the two come first: never a reference to nothing."""
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
