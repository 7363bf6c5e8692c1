from __future__ import annotations

import threading

from spark_logbus.network.deadlines import DeadlineQueue


def test_due_things_come_out_once_in_order() -> None:
    deadlines: DeadlineQueue[str] = DeadlineQueue()
    deadlines.set("late", 3.0)
    deadlines.set("early", 1.0)
    assert deadlines.take_due(0.5) == []
    assert deadlines.take_due(3.0) == ["early", "late"]
    assert deadlines.take_due(9.0) == []


def test_the_earlier_of_two_times_counts() -> None:
    deadlines: DeadlineQueue[str] = DeadlineQueue()
    deadlines.set("a", 2.0)
    deadlines.set("a", 5.0)
    deadlines.set("a", 1.0)
    assert deadlines.take_due(1.0) == ["a"]
    assert deadlines.take_due(9.0) == []


def test_a_thing_can_be_set_again_after_it_was_due() -> None:
    deadlines: DeadlineQueue[str] = DeadlineQueue()
    deadlines.set("a", 2.0)
    deadlines.set("a", 1.0)
    assert deadlines.take_due(1.0) == ["a"]
    deadlines.set("a", 3.0)
    assert deadlines.take_due(2.5) == [], "the outdated entry must not count"
    assert deadlines.take_due(3.0) == ["a"]


def test_forgotten_things_are_not_due() -> None:
    deadlines: DeadlineQueue[str] = DeadlineQueue()
    deadlines.set("a", 1.0)
    deadlines.forget("a")
    deadlines.forget("never there")
    assert deadlines.take_due(9.0) == []
    assert len(deadlines) == 0


def test_outdated_entries_do_not_pile_up() -> None:
    deadlines: DeadlineQueue[int] = DeadlineQueue()
    for number in range(10_000):
        deadlines.set(number, 60.0 + number)
        deadlines.forget(number)
    assert len(deadlines._heap) < 200


def test_wait_ends_when_an_earlier_time_is_set_and_at_close() -> None:
    deadlines: DeadlineQueue[str] = DeadlineQueue()
    ended = threading.Event()

    def wait() -> None:
        deadlines.wait(now=0.0, until=600.0)
        ended.set()

    def set_deadline() -> None:
        deadlines.set("a", 1.0)

    for end in (set_deadline, deadlines.close):
        ended.clear()
        thread = threading.Thread(target=wait)
        thread.start()
        while not ended.wait(0.01):
            end()  # again and again: it may come before the thread waits
            deadlines.forget("a")
        thread.join()
    deadlines.wait(now=0.0, until=600.0)
