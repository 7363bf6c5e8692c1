from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from spark_logbus.network.memory import MemoryPool, Reservation, UsedMemory


def opened(pool: MemoryPool, told: list[str], name: str, *, peer: str = "a") -> Reservation:
    return pool.open(peer, lambda: told.append(name))


def test_what_fits_is_granted_at_once_and_comes_back() -> None:
    pool, told = MemoryPool(200, largest=100, share=100), list[str]()
    first, second = opened(pool, told, "first"), opened(pool, told, "second")
    assert first.grow(50)
    assert second.grow(40)
    assert first.grow(10)
    assert pool.used == 100
    first.release()
    first.release()
    assert pool.used == 40
    assert not told, "nobody waited"


def test_waiting_frames_get_through_one_after_another() -> None:
    """Each has a part and needs more: with nothing but the pool they would wait for ever."""
    pool, told = MemoryPool(200, largest=100, share=100), list[str]()
    frames = {name: opened(pool, told, name) for name in ("one", "two", "three", "four")}
    assert all(frame.grow(25) for frame in frames.values())
    assert frames["one"].grow(75), "it has the last resort to itself"
    for name in ("two", "three", "four"):
        assert not frames[name].grow(75)
    assert pool.used == 175
    frames["one"].release()
    assert told == ["two"]
    assert frames["two"].grow(0)
    frames["two"].release()
    assert told == ["two", "three"]
    frames["three"].release()
    frames["four"].release()
    assert told == ["two", "three", "four"]
    assert pool.used == 0


def test_whoever_has_the_last_resort_never_waits_again() -> None:
    pool, told = MemoryPool(110, largest=100, share=10), list[str]()
    lucky, other = opened(pool, told, "lucky"), opened(pool, told, "other")
    assert lucky.grow(10)
    for _ in range(9):
        assert lucky.grow(10)
    assert not other.grow(1)
    lucky.release()
    assert told == ["other"]


def test_a_peer_that_fills_its_share_is_in_nobody_elses_way() -> None:
    pool, told = MemoryPool(200, largest=100, share=30), list[str]()
    hogs = [opened(pool, told, f"hog {number}", peer="hog") for number in range(5)]
    assert hogs[0].grow(30)
    assert hogs[1].grow(20), "the last resort"
    assert not any(hog.grow(20) for hog in hogs[2:])
    for _ in range(10):
        good = opened(pool, told, "good", peer="good")
        assert good.grow(30)
        good.release()
    assert not told


def test_peers_take_turns_at_the_last_resort() -> None:
    pool, told = MemoryPool(100, largest=100, share=100), list[str]()
    first = opened(pool, told, "first", peer="hog")
    assert first.grow(1)
    hogs = [opened(pool, told, f"hog {number}", peer="hog") for number in range(10)]
    good = opened(pool, told, "good", peer="good")
    assert not any(waiting.grow(1) for waiting in (*hogs, good))
    first.release()
    hogs[0].release()
    assert told == ["hog 0", "good"]


def test_within_a_peer_waiting_is_first_come_first_served() -> None:
    pool, told = MemoryPool(110, largest=10, share=100), list[str]()
    holder, last = opened(pool, told, "holder"), opened(pool, told, "last")
    assert holder.grow(95)
    assert last.grow(10)
    large, small = opened(pool, told, "large"), opened(pool, told, "small")
    assert not large.grow(80)
    assert not small.grow(5), "or small ones could keep a large one out for ever"
    holder.release()
    assert told == ["large", "small"]


def test_one_that_waits_no_longer_lets_the_next_through() -> None:
    pool, told = MemoryPool(200, largest=100, share=100), list[str]()
    holder, last = opened(pool, told, "holder"), opened(pool, told, "last")
    assert holder.grow(50)
    assert last.grow(60)
    gone, next_one = opened(pool, told, "gone"), opened(pool, told, "next")
    assert not gone.grow(80)
    assert not next_one.grow(50)
    gone.release()
    assert told == ["next"]
    assert pool.used == 160
    last.release()
    holder.release()
    next_one.release()
    assert pool.used == 0


@given(
    frames=st.lists(
        st.tuples(st.integers(0, 3), st.lists(st.integers(1, 40), min_size=1, max_size=6)),
        min_size=1,
        max_size=12,
    ),
    shared=st.integers(0, 120),
    share=st.integers(1, 120),
    order=st.randoms(use_true_random=False),
)
def test_whatever_the_frames_all_get_through_within_the_bounds(
    frames: list[tuple[int, list[int]]], shared: int, share: int, order: object
) -> None:
    largest = max(sum(steps) for _, steps in frames)
    pool = MemoryPool(shared + largest, largest=largest, share=share)
    rest = {pool.open(f"peer {peer}", lambda: None): list(steps) for peer, steps in frames}
    while rest:
        able = [frame for frame in rest if frame.granted]
        assert able, "nobody can go on"
        frame = order.choice(able)  # type: ignore[attr-defined]
        if rest[frame]:
            frame.grow(rest[frame].pop(0))
        else:
            frame.release()
            del rest[frame]
        assert pool.used <= shared + largest
    assert pool.used == 0
    assert not pool._peers


def test_what_is_in_use_already_counts_beyond_the_total() -> None:
    tally = UsedMemory(100)
    first, second = tally.charge(99), tally.charge(51)
    assert tally.exhausted
    second.release()
    second.release()
    assert not tally.exhausted
    first.release()
    assert tally.used == 0
