"""What all programs found, in short."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from bench.harness import ROOT
from bench.report import RESULTS, ratios_of_all, stale_pages
from bench.result import Compared, Ratios, Spread
from bench.spark.rows import ALL_COLUMNS, AT_LEAST_ONCE, EXACTLY_ONCE, FLUSHED, VALUE_ONLY, WRITTEN
from bench.summary import LINES, SIZES, Rows, summary
from bench.typed.rows import TYPED


def ratios(*found: tuple[str, str, str, float]) -> Ratios:
    return {
        Compared(row, what, "logbus", beside): Spread(median, median / 2, median * 2)
        for row, what, beside, median in found
    }


@pytest.mark.parametrize(
    ("known", "said"),
    [
        (
            {"scaling": ratios(("partitions 1", "MB/s produced", "Kafka", 1.234),
                               ("partitions 10", "MB/s produced", "Kafka", 0.5),
                               ("readers 1", "MB/s read", "Kafka", 20.0))},
            "| librdkafka | **0.50** to 1.23 | [scaling.md](scaling.md) |",
        ),
        (
            {"clients": ratios(("iterate", "iterator", "Kafka's Java", 2.04),
                               ("iterate", "iterator", "librdkafka", 12.3))},
            "| the consumer's iterator | Kafka's Java; librdkafka | 2.0; 12 | [consumers]",
        ),
        (
            {"peers": ratios(*((row, "producer", "Kafka", 2.0) for row in ("batch-1", "batch-50")),
                             ("batch-1", "producer", "Kafka, librdkafka", 2.0))},
            "| Kafka's Java; librdkafka | 2.0; 2.0 | [2; 1 experiments]",
        ),
        (
            {SIZES: ratios(("batch-1", "disk", "Kafka", 4.3), ("defaults", "disk", "Kafka", 0.9),
                           ("batch-50", "disk", "Kafka", 1.001))},
            "| Kafka's | 0.90 to **4.3** | [record batches]",
        ),
    ],
)  # fmt: skip
def test_rows_stand_from_the_lowest_to_the_highest(known: Mapping[str, Ratios], said: str) -> None:
    assert said in summary(known)
    assert len(summary(known).splitlines()) == 3


OF_KAFKA = ("Kafka", "Kafka, tuned")
READS = [
    Rows("spark", "read-200", what, beside=other)
    for what in (ALL_COLUMNS, VALUE_ONLY)
    for other in OF_KAFKA
]
WRITES = [
    *(Rows("spark", "write-200", WRITTEN, AT_LEAST_ONCE, other) for other in OF_KAFKA),
    *(Rows("spark", "write-200", FLUSHED, own, OF_KAFKA[1])
      for own in (AT_LEAST_ONCE, EXACTLY_ONCE)),
]  # fmt: skip
TYPED_READS = [
    Rows("typed", "k", own=TYPED, beside=other)
    for other in ("Kafka, from_json", "Kafka tuned, from_json",
                  "Kafka, from_avro", "Kafka tuned, from_avro")
]  # fmt: skip
MICRO_BATCHES = [Rows("stream", "noop", "*`noop`"), Rows("stream", "foreach", "*`foreachBatch`")]


@pytest.mark.parametrize(
    ("sentence", "rows"),
    [
        ("Batch reads are {:.1f} times as fast as with Spark's Kafka source**, or {:.1f} times "
         "when its consumer is tuned. Where only the values are read, they are {:.1f} and {:.1f} "
         "times as fast.", READS),
        ("Batch writes are {:.1f} times as fast as with Spark's Kafka sink**, or {:.1f} times when "
         "it is tuned. They are {:.1f} times as fast where both flush to the disk. Writes exactly "
         "once, which Kafka's sink does not have, are {:.1f} times as fast", WRITES),
        ("When Spark reads three of a schema's 19 fields, logbus is {:.0f} times as fast as the "
         "Kafka source with `from_json`, or {:.0f} times when its consumer is tuned. It is {:.0f} "
         "and {:.0f} times as fast as the Kafka source with `from_avro`", TYPED_READS),
        ("At 5,000 records a second they are {:.2f} times as fast into a sink that discards, and "
         "{:.2f} times with `foreachBatch`", MICRO_BATCHES),
    ],
)  # fmt: skip
def test_the_readme_has_the_figures_of_the_results(sentence: str, rows: Sequence[Rows]) -> None:
    known = ratios_of_all(RESULTS)
    found = [median for each in rows for median in each.of(known).values()]
    assert sentence.format(*found) in " ".join((ROOT / "README.md").read_text().split())


def test_what_lacks_a_part_is_left_out() -> None:
    assert summary({"clients": ratios(("iterate", "iterator", "librdkafka", 3.0))}) == ""


def test_all_lines_stand_in_what_is_committed(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("<!-- generated: bench all summary -->\n<!-- end -->\n")
    [text] = stale_pages([page], RESULTS).values()
    assert text.count("\n| ") == len(LINES) + 1
