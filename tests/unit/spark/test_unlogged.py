"""Tokens are kept out of PySpark's log."""

from __future__ import annotations

import logging
import threading

import pytest

from spark_logbus.spark.unlogged import unlogged


def test_commands_of_this_thread_are_not_logged_meanwhile(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    gateway, another = logging.getLogger("py4j.clientserver"), logging.getLogger("spark_logbus")
    with unlogged():
        gateway.debug("a command with a token")
        another.debug("something else")
        thread = threading.Thread(target=lambda: gateway.debug("a command of another thread"))
        thread.start()
        thread.join(60)
    gateway.debug("a command after it")
    assert caplog.messages == [
        "something else",
        "a command of another thread",
        "a command after it",
    ]
