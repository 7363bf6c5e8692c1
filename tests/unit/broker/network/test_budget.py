from __future__ import annotations

from spark_logbus.broker.network.budget import Budget, Reservation


def reserve(budget: Budget, size: int, told: list[int]) -> Reservation:
    return budget.reserve(size, lambda: told.append(size))


def test_what_fits_is_granted_at_once_and_comes_back() -> None:
    budget, told = Budget(100), list[int]()
    first, second = reserve(budget, 60, told), reserve(budget, 40, told)
    assert first.granted
    assert second.granted
    assert budget.exhausted
    first.release()
    first.release()
    assert budget.used == 40
    assert not told, "nobody waited"


def test_waiting_is_first_come_first_served_whatever_the_size() -> None:
    budget, told = Budget(100), list[int]()
    holder = reserve(budget, 90, told)
    large, small = reserve(budget, 80, told), reserve(budget, 5, told)
    assert not large.granted
    assert not small.granted, "or small ones could keep a large one out for ever"
    holder.release()
    assert large.granted
    assert small.granted
    assert told == [80, 5]


def test_one_that_waits_no_longer_lets_the_next_through() -> None:
    budget, told = Budget(100), list[int]()
    holder = reserve(budget, 50, told)
    gone, next_one = reserve(budget, 60, told), reserve(budget, 50, told)
    gone.release()
    assert next_one.granted
    assert told == [50]
    holder.release()
    next_one.release()
    assert budget.used == 0


def test_what_is_in_use_already_counts_beyond_the_total() -> None:
    budget, told = Budget(100), list[int]()
    charged = budget.charge(150)
    waiting = reserve(budget, 1, told)
    assert not waiting.granted
    charged.release()
    assert waiting.granted
