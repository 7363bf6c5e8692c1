"""``logbus accept-clock``: what is said, and what the next start makes of it."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from spark_logbus.broker.replica.watermark import sole_replica
from spark_logbus.cli.app import app
from spark_logbus.cli.output import console
from spark_logbus.cli.server.clocks import tell_of_clocks
from spark_logbus.local.cluster import BrokerProcess
from spark_logbus.log import OS_FILES, LogConfig, LogDirectory
from spark_logbus.log.clock_file import write_clock
from spark_logbus.log.disk import names

DAY_US = 86_400_000_000
Run = Callable[..., tuple[int, str]]


@pytest.fixture
def accept(capsys: pytest.CaptureFixture[str], data: Path) -> Run:
    def run(*words: object) -> tuple[int, str]:
        with pytest.raises(SystemExit) as ended:
            app(["accept-clock", *map(str, words or (data,))])
        shown = capsys.readouterr()
        # Errors stand in a box, whose lines break where the path of this run has them break.
        said = (shown.out + shown.err).replace("│", " ")
        return int(ended.value.code or 0), " ".join(said.split())

    return run


@pytest.fixture
def data(tmp_path: Path) -> Path:
    path = tmp_path / "data"
    opened(path).close()
    return path


def opened(path: Path) -> LogDirectory:
    directory = LogDirectory(path, defaults=LogConfig(), watermark=sole_replica)
    directory.open()
    return directory


def seen_days_ago(data: Path, days: float) -> None:
    write_clock(OS_FILES, data, time.time_ns() // 1000 - int(days * DAY_US))


def is_refused(data: Path) -> bool:
    directory = opened(data)
    problem = directory.clock.problem()
    directory.close()
    return problem is not None


@pytest.mark.parametrize("days", [0.9, 0, -0.9])
def test_a_clock_that_is_believed_needs_no_word(accept: Run, data: Path, days: float) -> None:
    seen_days_ago(data, days)
    code, said = accept(data, "--execute")
    assert (code, "nothing is to be done" in said) == (0, True)
    assert not (data / names.CLOCK_ACCEPTED).exists()


@pytest.mark.parametrize(("days", "named"), [(6, "6.0 days ahead"), (-20000, "20,000.0 days beh")])
def test_a_dry_run_changes_nothing(accept: Run, data: Path, days: float, named: str) -> None:
    seen_days_ago(data, days)
    code, said = accept()
    assert code == 0
    assert named in said
    assert "Dry run" in said
    assert is_refused(data)


@pytest.mark.parametrize("days", [6, -20000])
def test_a_start_after_it_goes_by_the_clock(accept: Run, data: Path, days: float) -> None:
    seen_days_ago(data, days)
    code, said = accept(data, "--execute")
    assert (code, "a start of the broker within a day" in said) == (0, True)
    assert not is_refused(data)
    assert not is_refused(data)


def test_what_is_no_data_directory(accept: Run, tmp_path: Path) -> None:
    code, said = accept(tmp_path, "--execute")
    assert (code, "holds no logs" in said) == (2, True)
    code, said = accept(tmp_path / "none")
    assert (code, "Cannot read" in said) == (2, True)


@pytest.mark.parametrize(
    ("days", "named"),
    [(0, ""), (0.9, ""), (6.21, "6.2 days ahead of what broker 7"), (-2, "2.0 days behind")],
)
def test_a_cluster_of_one_s_own_says_what_to_do(
    data: Path, capsys: pytest.CaptureFixture[str], days: float, named: str
) -> None:
    seen_days_ago(data, days)
    broker = BrokerProcess(7, data.parent, zookeeper="127.0.0.1:1", settings={})
    tell_of_clocks(console(), [broker])
    said = " ".join(capsys.readouterr().out.split())
    if named:
        assert named in said
        assert "logbus accept-clock" in said
    else:
        assert said == ""
