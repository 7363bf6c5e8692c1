"""Damaged nodes, and no ZooKeeper at all."""

from __future__ import annotations

import pytest

from spark_logbus.coordination import paths
from spark_logbus.errors import CoordinationError
from spark_logbus.schemas.registry import SchemaAdministration, SchemaRegistry
from spark_logbus.zookeeper import CorruptNodeError
from tests.integration.schemas.registry.texts import INT, LONG
from tests.servers.zookeeper import Proxy, put, session


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

    @pytest.mark.long
    def test_without_zookeeper_what_is_remembered_is_there_and_the_rest_ends_in_time(
        self, chroot: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with (
            Proxy(chroot.partition("/")[0]) as proxy,
            session(proxy.connect_string(chroot)) as opened,
        ):
            registry = SchemaRegistry(opened)
            registry.register("a", INT)
            monkeypatch.setattr(opened, "_operation_timeout_ms", 500)
            proxy.refuse.set()
            proxy.cut()
            assert registry.by_id(1).text == INT
            assert registry.by_id_now(1).text == INT
            assert registry.parsed(1).kind == "int"
            with pytest.raises(CoordinationError, match="did not answer within 500 ms"):
                registry.register("a", LONG)
            with pytest.raises(CoordinationError):
                registry.by_id(2)
