"""Log records as records of a topic: fresh processes, as users start them, and real brokers."""

from __future__ import annotations

import json
import logging
import logging.config
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from spark_logbus.client import Admin, Cluster, Consumer, ProducerConfig
from spark_logbus.client.logging_handler import LogbusHandler
from spark_logbus.errors import InvalidNameError, InvalidRequestError
from spark_logbus.local.cluster import EmbeddedCluster
from tests.helpers import wait_until
from tests.integration.client.short_program import run_program
from tests.servers.cluster import Logbus

NOBODY = "127.0.0.1:1/logbus"  # no user can listen there

# As docs/client.md shows it.
CONFIGURED = """
import atexit, logging, logging.config, logging.handlers, os, queue, sys, threading

CONFIG = {
    "version": 1,
    "disable_existing_loggers": False,
    "handlers": {
        "topic": {
            "()": "spark_logbus.client.logging_handler.LogbusHandler", "topic": sys.argv[1],
        }
    },
    "root": {"handlers": ["topic"], "level": "INFO"},
}
"""
PROGRAMS = {
    "that configures and ends": (
        """
logging.config.dictConfig(CONFIG)
logging.info("one")
""",
        ["one"],
    ),
    "that configures twice": (
        """
existing = logging.getLogger("existing")
logging.config.dictConfig(CONFIG)
logging.info("one")
existing.info("two")
logging.config.dictConfig({**CONFIG, "disable_existing_loggers": True})
existing.info("disabled")
logging.info("three")
""",
        ["one", "two", "three"],
    ),
    "that logs in a thread after the main one": (
        """
logging.config.dictConfig(CONFIG)
def work():
    threading.main_thread().join()
    logging.info("one")
threading.Thread(target=work).start()
""",
        ["one"],
    ),
    "that logs at its exit": (
        """
logging.config.dictConfig(CONFIG)
atexit.register(logging.info, "two")
logging.info("one")
""",
        ["one", "two"],
    ),
    "that shuts logging down and goes on": (
        """
logging.config.dictConfig(CONFIG)
logging.info("one")
logging.shutdown()
logging.info("two")
""",
        ["one", "two"],
    ),
    "that calls exit": (
        """
logging.config.dictConfig(CONFIG)
logging.info("one")
sys.exit(0)
""",
        ["one"],
    ),
    "with a queue before the handler": (
        """
from spark_logbus.client.logging_handler import LogbusHandler
waiting = queue.Queue()
listener = logging.handlers.QueueListener(waiting, LogbusHandler(sys.argv[1]))
logging.getLogger().addHandler(logging.handlers.QueueHandler(waiting))
listener.start()
try:
    raise ValueError("no stock")
except ValueError:
    logging.exception("one")
listener.stop()
""",
        ["one"],
    ),
    "with a broken formatter": (
        """
from spark_logbus.client.logging_handler import JsonFormatter
class Broken(JsonFormatter):
    def format(self, record):
        if record.args:
            raise ZeroDivisionError
        return super().format(record)
logging.config.dictConfig(CONFIG)
[handler] = logging.getLogger().handlers
handler.setFormatter(Broken())
logging.raiseExceptions = False
logging.info("not %s", "this")
logging.info("one")
assert handler.dropped == 1
""",
        ["one"],
    ),
}


def messages(logbus: Logbus, topic: str) -> list[str]:
    [values] = logbus.values(topic)
    return [json.loads(value)["message"].partition("\n")[0] for value in values]


@pytest.mark.parametrize(("program", "logged"), PROGRAMS.values(), ids=PROGRAMS)
def test_what_a_program_logs_is_in_the_topic_when_it_has_ended(
    logbus: Logbus, program: str, logged: list[str]
) -> None:
    topic = logbus.topic()
    ended = run_program(CONFIGURED + program, topic, zookeeper=logbus.zookeeper)
    assert ended.stderr == ""
    # Acknowledged is what is written; it is seen when it is flushed.
    wait_until(lambda: sorted(messages(logbus, topic)) == sorted(logged))


@pytest.mark.parametrize(
    "child",
    [
        """
if os.fork() == 0:
    logging.info("child")
    sys.exit()
os.wait()
""",
        """
import multiprocessing
process = multiprocessing.get_context("fork").Process(target=logging.info, args=["child"])
process.start()
process.join()
""",
    ],
    ids=["fork", "multiprocessing"],
)
def test_parent_and_forked_child_publish_their_own(logbus: Logbus, child: str) -> None:
    topic = logbus.topic()
    quiet = "import warnings; warnings.simplefilter('ignore', DeprecationWarning)\n"
    program = f"""
logging.config.dictConfig(CONFIG)
logging.info("before")
{child}
logging.info("after")
"""
    ended = run_program(CONFIGURED + quiet + program, topic, zookeeper=logbus.zookeeper)
    assert ended.stderr == ""
    wait_until(lambda: sorted(messages(logbus, topic)) == ["after", "before", "child"])
    found = messages(logbus, topic)
    assert found.index("before") < found.index("after")


def test_signal_handlers_may_log_while_the_program_logs(logbus: Logbus) -> None:
    topic = logbus.topic()
    program = """
import signal
logging.config.dictConfig(CONFIG)
logged = handled = 0
def handle(*_):
    global handled
    handled += 1
    logging.info("handled")
signal.signal(signal.SIGALRM, handle)
signal.setitimer(signal.ITIMER_REAL, 0.0002, 0.0002)
while handled < 500:
    logged += 1
    logging.info("logged")
signal.setitimer(signal.ITIMER_REAL, 0)
print(logged + handled)
"""
    ended = run_program(CONFIGURED + program, topic, zookeeper=logbus.zookeeper)
    assert ended.stderr == ""
    wait_until(lambda: list(logbus.ends(topic).values()) == [int(ended.stdout)])


def test_a_program_without_a_cluster_runs_and_tells_what_it_dropped() -> None:
    program = """
from spark_logbus.client import logging_handler
logging.config.dictConfig(CONFIG)
logging.info("one")
logging_handler._FLUSH_S = 3_600  # a configuration waits for nothing
logging.config.dictConfig(CONFIG)
logging_handler._FLUSH_S = 0.5
logging.info("two")
"""
    ended = run_program(CONFIGURED + program, "logs", zookeeper=NOBODY)
    assert "log records wait until they can be published. The reason: Nothing lis" in ended.stderr
    assert ended.stderr.count("1 log records dropped, 1 in all. The last reason: the pro") == 2


def test_the_end_of_a_program_is_silent_where_logging_is(logbus: Logbus) -> None:
    program = """
logging.raiseExceptions = False
logging.config.dictConfig(CONFIG)
logging.info("one")
"""
    assert run_program(CONFIGURED + program, "logs", zookeeper=NOBODY).stderr == ""


@pytest.fixture
def log() -> Iterator[logging.Logger]:
    """A logger without handlers, which are taken away afterwards."""
    logger = logging.getLogger("shop.orders")
    logger.propagate = False
    logger.setLevel(logging.INFO)
    yield logger
    for handler in list(logger.handlers):
        logger.removeHandler(handler)
        handler.close()


def test_log_records_are_json_with_what_they_were_given(
    logbus: Logbus, log: logging.Logger
) -> None:
    topic = logbus.topic()
    handler = LogbusHandler(topic, zookeeper=logbus.zookeeper, level="INFO")
    log.addHandler(handler)
    log.debug("not this")
    log.info("order %d of %s", 7, "é\udcff", extra={"customer": "c-1"})
    try:
        raise ValueError("no stock")
    except ValueError:
        log.exception("failed")
    handler.handle(logging.makeLogRecord({"name": "spark_logbus.client", "msg": "its own"}))
    handler.flush()
    wait_until(lambda: len(messages(logbus, topic)) == 2)
    [values] = logbus.values(topic)
    first, second = map(json.loads, values)
    assert (first["level"], first["logger"]) == ("INFO", "shop.orders")
    assert (first["message"], first["customer"]) == ("order 7 of é\udcff", "c-1")
    assert second["message"] == "failed"
    assert "ValueError: no stock" in str(second["exception"])


def test_records_wait_for_a_topic_that_comes_later(
    logbus: Logbus, log: logging.Logger, capsys: pytest.CaptureFixture[str]
) -> None:
    topic = logbus.topic_name()
    log.addHandler(LogbusHandler(topic, zookeeper=logbus.zookeeper))
    log.info("early")
    told: list[str] = []

    def is_told(what: str) -> bool:
        told.append(capsys.readouterr().err)
        return what in "".join(told)

    wait_until(lambda: is_told(f"The cluster has no topic '{topic}'"))
    logbus.topic(name=topic)
    wait_until(lambda: messages(logbus, topic) == ["early"])
    wait_until(lambda: is_told("log records are published again."))


def test_what_no_broker_takes_is_dropped_alone_and_told(
    logbus: Logbus, log: logging.Logger, capsys: pytest.CaptureFixture[str]
) -> None:
    topic = logbus.topic(max_message_bytes="4096")
    handler = LogbusHandler(topic, zookeeper=logbus.zookeeper)
    log.addHandler(handler)
    log.info("x" * 10_000)
    log.info("small")
    handler.flush()
    wait_until(lambda: messages(logbus, topic) == ["small"])
    assert handler.dropped == 1
    handler.close()
    assert "1 log records dropped, 1 in all. The last reason: A record" in capsys.readouterr().err


def test_what_cannot_be_a_topic_or_a_key_is_refused_at_once() -> None:
    with pytest.raises(InvalidNameError, match="cannot name a topic"):
        LogbusHandler("app logs")
    with pytest.raises(InvalidRequestError, match="key must be bytes"):
        LogbusHandler("logs", key="text")  # type: ignore[arg-type]


@pytest.mark.long
def test_a_broker_that_is_away_holds_up_nobody(tmp_path: Path, log: logging.Logger) -> None:
    config = ProducerConfig(buffer_bytes=1 << 20, batch_bytes=1 << 18, delivery_timeout_ms=2_000)
    with EmbeddedCluster(tmp_path / "cluster") as embedded:
        with Cluster.from_zookeeper(embedded.zookeeper) as cluster:
            Admin(cluster).create_topic("logs", partitions=1)
        handler = LogbusHandler("logs", zookeeper=embedded.zookeeper, config=config)
        log.addHandler(handler)
        log.warning("before")
        handler.flush()
        for broker in embedded.brokers:
            broker.kill()
        began = time.monotonic()
        for _ in range(20_000):
            log.warning("x" * 100)
        assert time.monotonic() - began < 60, "20,000 waits of any length would take longer"
        assert handler.dropped > 0
        for broker in embedded.brokers:
            broker.start()
        log.warning("after")
        log.removeHandler(handler)
        handler.close()
        with Cluster.from_zookeeper(embedded.zookeeper) as cluster, Consumer(cluster) as consumer:
            consumer.assign_topics("logs")
            values = consumer.to_arrow().column("value").to_pylist()
    assert json.loads(values[0])["message"] == "before"
