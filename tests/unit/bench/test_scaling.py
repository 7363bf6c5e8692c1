"""How results of scaling are kept, shown and put on a line."""

from __future__ import annotations

import csv
import importlib.util
from pathlib import Path

import pytest

from bench.kit.raw import RawError, RawResults, read_raw
from bench.programs.scaling.log_size import drop_pages, require_space
from bench.programs.scaling.model import fit
from bench.programs.scaling.results import COMPARED, Curve, curves_of, draw, shown_spread, tables
from bench.programs.scaling.worker import Job, spread_over

SAMPLES = (
    (1, "logbus", 0.5), (1, "logbus", 0.7), (1, "logbus", 0.1), (10, "logbus", 0.59),
    (1_000, "logbus", 10.49), (1_000, "Kafka", 20.98),
)  # fmt: skip


@pytest.fixture
def curve() -> Curve:
    made = Curve("partitions")
    for size, system, seconds in SAMPLES:
        made.add(size, system, {"s until usable": seconds})
    return made


@pytest.fixture
def kept(curve: Curve, tmp_path: Path) -> Path:
    path = tmp_path / "raw.csv"
    raw = RawResults(path)
    for size in curve.sizes:
        raw.add_rounds(f"partitions {size:g}", curve.at(size))
    return path


class TestLine:
    def test_it_goes_through_points_on_a_line(self) -> None:
        line = fit([(1, 5.0), (10, 23.0), (100, 203.0)])
        assert (line.fixed, line.per_unit, line.r2) == pytest.approx((3, 2, 1))
        assert line.at(10_000) == pytest.approx(20_003)
        assert line.holds
        assert line.farthest[1] == pytest.approx(0)
        assert line.bend is None

    def test_it_is_the_one_of_least_squares(self) -> None:
        line = fit([(1, 1.0), (2, 2.0), (3, 2.0)])
        assert (line.fixed, line.per_unit, line.r2) == pytest.approx((2 / 3, 0.5, 0.75))
        assert not line.holds

    def test_a_cost_that_does_not_vary_has_one_too(self) -> None:
        line = fit([(1, 44.0), (4, 44.0), (16, 44.0)])
        assert (line.fixed, line.per_unit, line.r2) == (44, 0, 1)
        assert line.holds

    def test_a_cost_that_falls_is_not_told_for_larger_sizes(self) -> None:
        assert not fit([(1, 30.0), (2, 20.0), (3, 10.0)]).holds

    def test_it_says_which_point_is_far_from_it(self) -> None:
        line = fit([(1, 10.0), (100, 101.0), (1_000, 1_000.0)])
        size, off = line.farthest
        assert size == 1
        assert off == pytest.approx((10 - line.at(1)) / 10)
        assert off > 0.3

    def test_it_says_how_the_last_stretch_bends(self) -> None:
        straight = [(1, 1.0), (2, 2.0), (3, 3.0)]
        assert fit([*straight, (4, 4.0)]).bend == pytest.approx(1)
        assert fit([*straight, (4, 6.0)]).bend == pytest.approx(3)
        assert fit([*straight, (4, 3.0)]).bend == pytest.approx(0)
        assert fit([(1, 3.0), (2, 2.0), (3, 1.0), (4, 2.0)]).bend is None

    def test_one_size_is_refused(self) -> None:
        with pytest.raises(ValueError, match="at two sizes, got 1"):
            fit([(1, 1.0), (1, 2.0)])


def test_a_curve_shows_medians_and_their_spread(curve: Curve) -> None:
    assert curve.medians("s until usable") == {
        "logbus": [(1, 0.5), (10, 0.59), (1_000, 10.49)],
        "Kafka": [(1_000, 20.98)],
    }
    assert shown_spread(curve.values(1, "logbus", "s until usable")) == "0.5 (0.1-0.7)"
    assert curve.cells()[1:] == [
        ["s until usable", "logbus", "0.5 (0.1-0.7)", "0.59", "10.5"],
        ["s until usable", "Kafka", "", "", "21"],
    ]


def test_curves_are_compared_at_each_size(kept: Path) -> None:
    [(compared, found)] = COMPARED.of(read_raw(kept)).items()
    assert compared == ("partitions 1000", "s until usable", "logbus", "Kafka")
    assert found.ratio.median == 2.0


def test_a_charts_title_is_what_was_found(curve: Curve) -> None:
    assert curve.finding("s until usable") == (
        "s until usable at 1,000 partitions: 10.5 (logbus) and 21 (Kafka), Kafka 2.0 times logbus"
    )
    alone = Curve("brokers")
    for brokers in (1, 3):
        alone.add(brokers, "logbus", {"MB/s read": 100.0 * brokers})
    assert alone.finding("MB/s read") == (
        "MB/s read at 3 brokers: 300 (logbus), after 100 at 1"
    )  # fmt: skip


def test_results_are_kept_in_the_columns_of_all_benchmarks(kept: Path) -> None:
    with kept.open(newline="") as file:
        lines = list(csv.DictReader(file))
    assert lines[2] == {
        "row": "partitions 1", "run": "1", "contender": "logbus", "round": "3",
        "metric": "s until usable", "value": "0.1",
    }  # fmt: skip
    assert len(lines) == len(SAMPLES)


def test_what_was_kept_is_read_as_it_was(curve: Curve, kept: Path) -> None:
    with kept.open("a") as file:
        file.write("one-written,1,logbus,1,records/s,5\n")  # another program's
    assert [read.samples for read in curves_of(read_raw(kept))] == [curve.samples]


def test_a_file_of_other_columns_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "other.csv"
    path.write_text("case,seconds\nread,1\n")
    with pytest.raises(RawError, match="has the columns"):
        read_raw(path)


def test_tables_are_markdown_with_a_line_through_what_was_measured_at_three_sizes(
    kept: Path,
) -> None:
    made = tables(read_raw(kept))
    assert list(made) == ["partitions", "model-partitions"]
    assert made["partitions"].splitlines()[:3] == [
        "|  |  | 1 partition | 10 partitions | 1,000 partitions |",
        "|---|---|---:|---:|---:|",
        "| s until usable | logbus | 0.5 (0.1-0.7) | 0.59 | 10.5 |",
    ]
    assert "](charts/scaling-partitions-1.svg)" in made["partitions"]
    assert max(map(len, made["partitions"].splitlines())) <= 100
    assert made["model-partitions"].splitlines()[2:] == [
        "| s until usable | logbus | 0.49 | 0.01 | 1.000 | +0% at 1 |  | 100 |"
    ]


@pytest.mark.skipif(importlib.util.find_spec("matplotlib") is None, reason="no matplotlib")
def test_charts_are_drawn_of_what_was_kept(kept: Path, tmp_path: Path) -> None:
    (chart,) = draw(read_raw(kept), tmp_path / "charts")
    assert chart.name == "scaling-partitions-1.svg"
    assert "Kafka 2.0 times logbus" in " ".join(chart.read_text().split())


@pytest.mark.parametrize(
    ("clients", "shares"), [(1, [1]), (4, [1, 1, 1, 1]), (6, [2, 2, 1, 1]), (64, [16] * 4)]
)
def test_clients_are_spread_over_few_processes(clients: int, shares: list[int]) -> None:
    jobs = spread_over(Job("consume", "logbus", "here", "t", 5, clients=clients), 4)
    assert [job.clients for job in jobs] == shares
    assert {job.records for job in jobs} == {5}


def test_a_log_that_does_not_fit_on_the_disk_is_refused(tmp_path: Path) -> None:
    require_space(tmp_path, 0.001)
    with pytest.raises(SystemExit, match=r"GiB free, and 1e\+06 GiB of log take"):
        require_space(tmp_path, 1_000_000)


def test_pages_of_segments_are_dropped_and_nothing_is_lost(tmp_path: Path) -> None:
    segment = tmp_path / "t-0" / "0.log"
    segment.parent.mkdir()
    segment.write_bytes(b"records")
    drop_pages(tmp_path)
    assert segment.read_bytes() == b"records"
