"""The log as JSON, one object a line, whatever is logged."""

from __future__ import annotations

import json
import logging
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from spark_logbus.cli.server.logs import JsonFormatter, configure
from spark_logbus.errors import ConfigError
from spark_logbus.security.audit_log import AUDIT_LOGGER, AuditLog
from tests.fakes.clock import ManualClock

log = logging.getLogger("tests.logs")


def formatted(*args: object, **options: Any) -> dict[str, Any]:
    """Formats a record with these arguments; checks that it is one line."""
    lines = []

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(JsonFormatter(7).format(record))

    handler = Handler()
    log.addHandler(handler)
    log.propagate = False
    try:
        log.warning(*args, **options)
    finally:
        log.removeHandler(handler)
        log.propagate = True  # else pytest keeps the records too
    assert len(lines) == 1
    assert len(lines[0].splitlines()) == 1
    found: dict[str, Any] = json.loads(lines[0])
    return found


def test_the_fields_of_a_line() -> None:
    found = formatted("Leading %s in epoch %d.", "t-0", 3, extra={"topic": "t", "partition": 0})
    time = found.pop("ts")
    assert time.endswith("Z")
    assert len(time) == len("2026-01-01T00:00:00.000Z")
    assert found == {
        "level": "warning",
        "logger": "tests.logs",
        "message": "Leading t-0 in epoch 3.",
        "thread": "MainThread",
        "broker": 7,
        "topic": "t",
        "partition": 0,
    }


def test_an_exception_is_one_field() -> None:
    try:
        raise ValueError("two\nlines")
    except ValueError:
        found = formatted("It failed.", exc_info=True)
    assert found["message"] == "It failed."
    assert "Traceback" in found["exception"]
    assert found["exception"].endswith("ValueError: two\nlines")


def test_what_json_has_no_form_for() -> None:
    found = formatted("A\u2028line \ud800.", extra={"where": {1, 2}, "data": b"\xff"})
    assert found["message"] == "A\u2028line \ud800."
    assert (found["where"], found["data"]) == ("{1, 2}", "b'\\xff'")


def test_an_extra_field_never_replaces_a_fixed_one() -> None:
    found = formatted("Hello.", extra={"level": "none", "broker": 8})
    assert (found["level"], found["broker"]) == ("warning", 7)


@pytest.fixture
def _as_before() -> Iterator[None]:
    """Puts back what ``configure`` changes in this process."""
    names = (None, "spark_logbus", AUDIT_LOGGER)
    known = [(each, each.level, [*each.handlers], each.propagate)
             for each in map(logging.getLogger, names)]  # fmt: skip
    hooks = sys.excepthook, threading.excepthook
    yield
    for each, level, handlers, propagate in known:
        each.setLevel(level)
        for handler in [one for one in each.handlers if one not in handlers]:
            each.removeHandler(handler)
            handler.close()
        each.handlers[:] = handlers
        each.propagate = propagate
    sys.excepthook, threading.excepthook = hooks
    logging.captureWarnings(capture=False)


@pytest.mark.usefixtures("_as_before")
def test_the_audit_log_in_a_file_of_its_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Writes it whatever the level of others, for one reader, and anew when it is moved."""
    path = tmp_path / "audit.log"
    configure(format="text", level="error", broker_id=7, audit_file=path)
    audit = AuditLog(ManualClock())
    audit.changed("users", added=["anna"])
    logging.getLogger("spark_logbus.x").error("A line of the others.")
    path.rename(tmp_path / "audit.log.1")
    audit.changed("users", removed=["anna"])
    [first] = (tmp_path / "audit.log.1").read_text().splitlines()
    [second] = path.read_text().splitlines()
    assert json.loads(first)["added"] == json.loads(second)["removed"] == ["anna"]
    assert json.loads(first)["ts"].endswith("Z")
    assert path.stat().st_mode & 0o777 == 0o600
    assert "anna" not in capsys.readouterr().err


@pytest.mark.usefixtures("_as_before")
def test_no_request_fails_by_an_audit_log_that_cannot_be_opened_anew(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "audit.log"
    configure(format="text", level="error", broker_id=7, audit_file=path)
    path.unlink()
    path.mkdir()
    audit = AuditLog(ManualClock())
    audit.changed("users", added=["anna"])
    assert "Is a directory" in capsys.readouterr().err
    path.rmdir()
    audit.changed("users", added=["bert"])
    assert "bert" in path.read_text()


@pytest.mark.usefixtures("_as_before")
def test_an_audit_log_that_others_can_read_is_taken_from_them(tmp_path: Path) -> None:
    path = tmp_path / "audit.log"
    path.touch(0o644)
    configure(format="text", level="error", broker_id=7, audit_file=path)
    assert path.stat().st_mode & 0o777 == 0o600


@pytest.mark.usefixtures("_as_before")
def test_an_audit_log_that_cannot_be_written_is_told_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot be written to .*no/audit\.log: No such file"):
        configure(
            format="text", level="info", broker_id=7, audit_file=tmp_path / "no" / "audit.log"
        )


@pytest.mark.usefixtures("_as_before")
def test_the_audit_log_is_among_the_others_whatever_their_level(
    capsys: pytest.CaptureFixture[str],
) -> None:
    configure(format="text", level="error", broker_id=7)
    AuditLog(ManualClock()).changed("rules", added=["one"])
    assert '"rules changed"' in capsys.readouterr().err
