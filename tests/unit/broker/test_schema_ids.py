"""Schema ids that are known, looked up, and missed."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from spark_logbus.broker.schema_ids import MAX_LOOK_UPS_PER_S, KnownSchemaIds, SchemaUse
from spark_logbus.coordination.subjects import SubjectIds
from spark_logbus.errors import (
    CoordinationError,
    LimitExceededError,
    LogbusError,
    UnknownSchemaIdError,
)
from spark_logbus.zookeeper import CorruptNodeError
from tests.fakes.clock import ManualClock
from tests.fakes.executor import InlineExecutor


class Registry:
    """Subjects, with a count of the reads."""

    def __init__(self) -> None:
        self.ids: dict[str, set[int]] = {"s": {1, 2}}
        self.failure: LogbusError | None = None
        self.connected = True
        self.reads = 0
        self.clock = ManualClock()
        self.schema_ids = KnownSchemaIds(
            self.read,
            connected=lambda: self.connected,
            executor=InlineExecutor(),
            clock=self.clock,
        )

    def read(self, names: Iterable[str]) -> dict[str, SubjectIds | CorruptNodeError]:
        self.reads += 1
        if self.failure is not None:
            raise self.failure
        return {name: SubjectIds(frozenset(self.ids.get(name, ()))) for name in names}

    def accepts(self, schema_id: int, subject: str = "s") -> bool:
        """Asks as an append does: asked, looked up, asked again."""
        use = SchemaUse(subject, schema_id)
        if not self.schema_ids.accept(use, topic="t"):
            called: list[bool] = []
            self.schema_ids.look_up([use, use], lambda: called.append(True))
            assert called == [True]
            return self.schema_ids.accept(use, topic="t")
        return True


@pytest.fixture
def registry() -> Registry:
    return Registry()


def test_a_subject_is_read_once_for_all_its_ids(registry: Registry) -> None:
    assert registry.accepts(1)
    assert registry.accepts(2)
    assert registry.accepts(1)
    assert registry.reads == 1


def test_a_new_id_is_looked_up_at_once(registry: Registry) -> None:
    assert registry.accepts(1)
    registry.ids["s"].add(3)
    assert registry.accepts(3)


def test_an_id_of_another_subject_is_refused_by_name(registry: Registry) -> None:
    registry.ids["other"] = {9}
    with pytest.raises(UnknownSchemaIdError, match=r"'s'.*'t'.*id 9.*Register") as refused:
        registry.accepts(9)
    assert not refused.value.retriable


def test_an_id_that_is_refused_again_and_again_is_read_once_a_second(registry: Registry) -> None:
    for _ in range(100):
        with pytest.raises(UnknownSchemaIdError):
            registry.accepts(9)
    assert registry.reads == 1
    registry.ids["s"].add(9)
    registry.clock.advance(1.1)
    assert registry.accepts(9)
    assert registry.reads == 2


def test_ever_new_unknown_ids_do_not_make_a_read_each(registry: Registry) -> None:
    assert registry.accepts(1)
    for schema_id in range(1000, 1000 + MAX_LOOK_UPS_PER_S - 1):
        with pytest.raises(UnknownSchemaIdError):
            registry.accepts(schema_id)
    for schema_id in range(2000, 3000):
        with pytest.raises(LimitExceededError):
            registry.accepts(schema_id)
    assert registry.reads == MAX_LOOK_UPS_PER_S
    assert registry.accepts(2), "known ids go on"
    registry.clock.advance(1.1)
    with pytest.raises(UnknownSchemaIdError):
        registry.accepts(2000)


def test_without_zookeeper_known_ids_go_on(registry: Registry) -> None:
    assert registry.accepts(1)
    registry.connected = False
    assert registry.accepts(2)
    with pytest.raises(CoordinationError, match="try again") as refused:
        registry.accepts(3)
    assert refused.value.retriable
    assert registry.reads == 1


def test_a_failed_look_up_is_no_unknown_id(registry: Registry) -> None:
    registry.failure = CoordinationError("No answer.")
    for _ in range(3):
        with pytest.raises(CoordinationError, match="No answer"):
            registry.accepts(1)
    assert registry.reads == 1
    registry.failure = None
    registry.clock.advance(1.1)
    assert registry.accepts(1)


def test_an_id_that_was_known_stays_so_when_it_is_deleted(registry: Registry) -> None:
    assert registry.accepts(1)
    registry.ids["s"] = {2, 3}
    assert registry.accepts(3)
    assert registry.accepts(1)
