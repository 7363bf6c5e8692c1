"""The log as JSON, one object a line, whatever is logged."""

from __future__ import annotations

import json
import logging
from typing import Any

from spark_logbus.cli.server.logs import JsonFormatter

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
