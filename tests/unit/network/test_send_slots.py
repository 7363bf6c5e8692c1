from __future__ import annotations

from spark_logbus.network.limits import SendSlots


def test_as_many_may_enter_as_there_are_slots() -> None:
    slots: SendSlots[str] = SendSlots(2)
    assert slots.enter("a")
    assert slots.enter("b")
    assert not slots.enter("c")
    assert slots.leave() == "c", "who leaves goes on with the one that is parked"
    assert slots.leave() is None
    assert slots.leave() is None
    assert slots.enter("d")
    assert slots.enter("e")
    assert not slots.enter("f")


def test_parked_ones_come_in_order_and_can_be_cleared() -> None:
    slots: SendSlots[str] = SendSlots(1)
    assert slots.enter("a")
    for name in "bcd":
        assert not slots.enter(name)
    assert slots.leave() == "b"
    assert slots.clear() == ["c", "d"]
    assert slots.leave() is None
