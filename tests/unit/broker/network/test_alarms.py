from __future__ import annotations

import threading

from spark_logbus.broker.network.deadlines import DeadlineQueue


def test_due_things_come_out_once_in_order() -> None:
    alarms: DeadlineQueue[str] = DeadlineQueue()
    alarms.set("late", 3.0)
    alarms.set("early", 1.0)
    assert alarms.take_due(0.5) == []
    assert alarms.take_due(3.0) == ["early", "late"]
    assert alarms.take_due(9.0) == []


def test_the_earlier_of_two_times_counts() -> None:
    alarms: DeadlineQueue[str] = DeadlineQueue()
    alarms.set("a", 2.0)
    alarms.set("a", 5.0)
    alarms.set("a", 1.0)
    assert alarms.take_due(1.0) == ["a"]
    assert alarms.take_due(9.0) == []


def test_a_thing_can_be_set_again_after_it_was_due() -> None:
    alarms: DeadlineQueue[str] = DeadlineQueue()
    alarms.set("a", 2.0)
    alarms.set("a", 1.0)
    assert alarms.take_due(1.0) == ["a"]
    alarms.set("a", 3.0)
    assert alarms.take_due(2.5) == [], "the outdated entry must not count"
    assert alarms.take_due(3.0) == ["a"]


def test_forgotten_things_are_not_due() -> None:
    alarms: DeadlineQueue[str] = DeadlineQueue()
    alarms.set("a", 1.0)
    alarms.forget("a")
    alarms.forget("never there")
    assert alarms.take_due(9.0) == []
    assert len(alarms) == 0


def test_outdated_entries_do_not_pile_up() -> None:
    alarms: DeadlineQueue[int] = DeadlineQueue()
    for number in range(10_000):
        alarms.set(number, 60.0 + number)
        alarms.forget(number)
    assert len(alarms._heap) < 200


def test_wait_ends_when_an_earlier_time_is_set_and_at_close() -> None:
    alarms: DeadlineQueue[str] = DeadlineQueue()
    ended = threading.Event()

    def wait() -> None:
        alarms.wait(now=0.0, until=600.0)
        ended.set()

    def set_alarm() -> None:
        alarms.set("a", 1.0)

    for end in (set_alarm, alarms.close):
        ended.clear()
        thread = threading.Thread(target=wait)
        thread.start()
        while not ended.wait(0.01):
            end()  # again and again: it may come before the thread waits
            alarms.forget("a")
        thread.join()
    alarms.wait(now=0.0, until=600.0)
