"""What all programs found, in short."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from bench.report import RESULTS, stale_pages
from bench.result import Compared, Ratios, Spread
from bench.summary import LINES, SIZES, summary


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
            "| Kafka's Java; librdkafka | 2.0; 2.0 | [2 experiments]",
        ),
        (
            {SIZES: ratios(("batch-1", "disk", "Kafka", 4.3), ("defaults", "disk", "Kafka", 0.9))},
            "| Kafka's | 0.90 to **4.3** | [record batches]",
        ),
    ],
)  # fmt: skip
def test_rows_stand_from_the_lowest_to_the_highest(known: Mapping[str, Ratios], said: str) -> None:
    assert said in summary(known)
    assert len(summary(known).splitlines()) == 3


def test_what_lacks_a_part_is_left_out() -> None:
    assert summary({"clients": ratios(("iterate", "iterator", "librdkafka", 3.0))}) == ""


def test_all_lines_stand_in_what_is_committed(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("<!-- generated: bench all summary -->\n<!-- end -->\n")
    [text] = stale_pages([page], RESULTS).values()
    assert text.count("\n| ") == len(LINES) + 1
