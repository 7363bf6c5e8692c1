"""Table in short, and the figures of the README."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from bench.kit import ROOT
from bench.kit.comparing import Ask, Compared, Comparisons, Found
from bench.kit.result import Spread
from bench.programs.report.program import RESULTS, medians_of_runs, stale_pages
from bench.programs.report.summary import LINES, summary
from bench.programs.spark.rows import (
    ALL_COLUMNS,
    AT_LEAST_ONCE,
    EXACTLY_ONCE,
    FLUSHED,
    VALUE_ONLY,
    WRITTEN,
)
from bench.programs.typed.rows import TYPED


def comparisons(*found: tuple[str, str, str, float]) -> Comparisons:
    return {
        Compared(row, what, "logbus", beside): Found(Spread(median, median / 2, median * 2), 1, 1)
        for row, what, beside, median in found
    }


@pytest.mark.parametrize(
    ("known", "said"),
    [
        (
            {"scaling": comparisons(("partitions 1", "MB/s produced", "Kafka", 1.234),
                               ("partitions 10", "MB/s produced", "Kafka", 0.5),
                               ("readers 1", "MB/s read", "Kafka", 20.0))},
            "| librdkafka | **0.50** to 1.23 | [scaling.md](scaling.md) |",
        ),
        (
            {"clients": comparisons(("iterate", "", "Kafka's Java", 2.04),
                               ("iterate", "", "librdkafka", 12.3))},
            "| the consumer's iterator | Kafka's Java; librdkafka | 2.0; 12 | [consumers]",
        ),
        (
            {"peers": comparisons(("batch-1", "producer", "Kafka", 2.0),
                                  ("batch-50", "producer", "Kafka", 2.0),
                                  ("batch-1", "producer", "Kafka, librdkafka", 2.0))},
            "| Kafka's Java; librdkafka | 2.0; 2.0 | [2; 1 experiments]",
        ),
        (
            {"peers": comparisons(("batch-1", "disk", "Kafka", 0.23),
                                  ("defaults", "disk", "Kafka", 1.001))},
            "| Kafka | **0.23** to 1.00 | [record batches]",
        ),
    ],
)  # fmt: skip
def test_rows_stand_from_the_lowest_to_the_highest(
    known: Mapping[str, Comparisons], said: str
) -> None:
    assert said in summary(known)
    assert len(summary(known).splitlines()) == 3


OF_KAFKA = ("Kafka", "Kafka, tuned")
READS = [
    Ask("spark", "read-200", what, beside=other)
    for what in (ALL_COLUMNS, VALUE_ONLY)
    for other in OF_KAFKA
]
WRITES = [
    *(Ask("spark", "write-200", WRITTEN, AT_LEAST_ONCE, other) for other in OF_KAFKA),
    *(Ask("spark", "write-200", FLUSHED, own, OF_KAFKA[1])
      for own in (AT_LEAST_ONCE, EXACTLY_ONCE)),
]  # fmt: skip
TYPED_READS = [
    Ask("typed", "k", own=TYPED, beside=other)
    for other in ("Kafka, from_json", "Kafka tuned, from_json",
                  "Kafka, from_avro", "Kafka tuned, from_avro")
]  # fmt: skip
MICRO_BATCHES = [
    Ask("stream", row, "micro-batch", beside="Kafka") for row in ("noop", "foreach")
]  # fmt: skip


def medians_of(ask: Ask) -> list[float]:
    """Returns the medians of all runs, and those of runs elsewhere that results.csv has."""
    runs = medians_of_runs(ask.program, RESULTS / f"{ask.program}.csv")
    known = {ask.program: {each: Found(Spread(0, 0, 0), 0, 0) for each in runs}}
    found = [median for each in ask.of(known) for median in runs[each]]
    with (ROOT / "bench" / "results.csv").open(newline="") as file:
        return found + [
            float(line["value"])
            for line in csv.DictReader(file)
            if (line["bench"], line["unit"]) == (ask.program, "ratio")
            and line["case"] == f"{ask.row}, {ask.what}, beside {ask.beside}"
            and line["contender"] == ask.own
        ]


@pytest.mark.parametrize(
    ("sentence", "asks", "digits"),
    [
        ("Batch reads are {} times as fast as with Spark's Kafka source**, or {} times when its "
         "consumer is tuned. Where only the values are read, they are {} and {} times as fast.",
         READS, 1),
        ("Batch writes are {} times as fast as with Spark's Kafka sink**, or {} times when it is "
         "tuned. They are {} times as fast where both flush to the disk. Writes exactly once, "
         "which Kafka's sink does not have, are {} times as fast", WRITES, 1),
        ("When Spark reads three of a schema's 19 fields, logbus is {} times as fast as the Kafka "
         "source with `from_json`, or {} times when its consumer is tuned. It is {} and {} times "
         "as fast as the Kafka source with `from_avro`", TYPED_READS, 0),
        ("At 5,000 records a second they are {} times as fast into a sink that discards, and {} "
         "times with `foreachBatch`", MICRO_BATCHES, 2),
    ],
)  # fmt: skip
def test_the_readme_has_the_ranges_of_the_runs(
    sentence: str, asks: Sequence[Ask], digits: int
) -> None:
    medians = [medians_of(ask) for ask in asks]
    ranges = [
        " to ".join(dict.fromkeys(f"{end:.{digits}f}" for end in (min(each), max(each))))
        for each in medians
    ]
    assert sentence.format(*ranges) in " ".join((ROOT / "README.md").read_text().split())


def test_what_lacks_a_part_is_left_out() -> None:
    assert summary({"clients": comparisons(("iterate", "", "librdkafka", 3.0))}) == ""


def test_all_lines_stand_in_what_is_committed(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("<!-- generated: bench all summary -->\n<!-- end -->\n")
    text = stale_pages([page], RESULTS)[page]
    assert text.count("\n| ") == len(LINES) + 1
