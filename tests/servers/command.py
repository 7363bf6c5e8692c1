"""The command line, run in this process as a user types it, and a topic for it."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from spark_logbus.cli import main
from tests.servers.cluster import Logbus


@dataclass(frozen=True)
class Ended:
    """End of a command: its exit code, and what it wrote."""

    code: int
    out: str
    err: str

    @property
    def refusal(self) -> str:
        """The one message of a command that failed."""
        assert self.code == 1, self
        assert self.out == ""
        assert "Traceback" not in self.err
        lines = self.err.splitlines()
        assert len(lines) == 1, lines
        assert lines[0].startswith("Error: ")
        return lines[0]


Command = Callable[..., Ended]


def command_at(
    zookeeper: str, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Command:
    """Runs ``logbus <words>`` in this process, against the cluster at this address."""
    monkeypatch.setenv("LOGBUS_ZOOKEEPER", zookeeper)
    monkeypatch.delenv("COLUMNS", raising=False)

    def run(*words: str, stdin: bytes = b"") -> Ended:
        monkeypatch.setattr(sys, "argv", ["logbus", *words])
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        with pytest.raises(SystemExit) as ended:
            main()
        sys.stdout.flush()
        shown = capfd.readouterr()
        code = ended.value.code
        return Ended(code if isinstance(code, int) else 0, shown.out, shown.err)

    return run


@pytest.fixture
def command(
    logbus: Logbus, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Command:
    """Runs ``logbus <words>`` in this process, against the cluster of the tests."""
    return command_at(logbus.zookeeper, capfd, monkeypatch)


@pytest.fixture
def topic(logbus: Logbus) -> str:
    """Two partitions: a, b, c at offsets 0 to 2 of partition 0, d at 0 of partition 1."""
    name = logbus.topic(partitions=2)
    logbus.produce(name, ["a", "b", "c"], partition=0, timestamp_us=1_000_000)
    logbus.produce(name, ["d"], partition=1, timestamp_us=2_000_000)
    return name
