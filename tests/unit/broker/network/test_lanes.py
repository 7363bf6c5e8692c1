from __future__ import annotations

from spark_logbus.broker.network.limits import SendSlots


def test_as_many_may_enter_as_there_are_lanes() -> None:
    lanes: SendSlots[str] = SendSlots(2)
    assert lanes.enter("a")
    assert lanes.enter("b")
    assert not lanes.enter("c")
    assert lanes.leave() == "c", "who leaves goes on with the one that is parked"
    assert lanes.leave() is None
    assert lanes.leave() is None
    assert lanes.enter("d")
    assert lanes.enter("e")
    assert not lanes.enter("f")


def test_parked_ones_come_in_order_and_can_be_cleared() -> None:
    lanes: SendSlots[str] = SendSlots(1)
    assert lanes.enter("a")
    for name in "bcd":
        assert not lanes.enter(name)
    assert lanes.leave() == "b"
    assert lanes.clear() == ["c", "d"]
    assert lanes.leave() is None
