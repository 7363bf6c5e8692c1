from __future__ import annotations

import threading

from spark_logbus.metrics import Counter, Histogram


def test_a_histogram_counts_what_is_at_most_each_bound() -> None:
    histogram = Histogram((0.1, 1.0))
    for value in (0.05, 0.1, 0.5, 7.0):
        histogram.observe(value)
    read = histogram.read()
    assert read.bounds == (0.1, 1.0)
    assert read.cumulative == (2, 3, 4)
    assert read.sum == 7.65


def test_an_empty_histogram() -> None:
    assert Histogram((0.1,)).read().cumulative == (0, 0)


def test_nothing_is_lost_between_threads() -> None:
    counter, histogram = Counter(), Histogram((1.0,))
    together = threading.Barrier(4)

    def count() -> None:
        together.wait()
        for _ in range(20_000):
            counter.add(2)
            histogram.observe(0.5)

    threads = [threading.Thread(target=count) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert counter.value == 160_000
    assert histogram.read().cumulative == (80_000, 80_000)
