"""The ways out of a producer's ``with`` block, with a real broker."""

from __future__ import annotations

import signal
import subprocess
import sys
import textwrap

import pytest

from spark_logbus.client import Producer, ProducerConfig
from spark_logbus.errors import ProducerClosedError
from tests.servers.spark import Logbus

# Nothing is sent before it is flushed.
WAITING = ProducerConfig(linger_ms=600_000)

SERVICE = """
    import signal, sys
    from spark_logbus.client import Cluster, Producer, ProducerConfig

    zookeeper, topic = sys.argv[1:]
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))
    with Cluster.from_zookeeper(zookeeper) as cluster:
        with Producer(cluster, ProducerConfig(linger_ms=600_000)) as producer:
            for number in range(1_000):
                producer.send(topic, b"%d" % number)
            print("sent", flush=True)
            signal.pause()
"""


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt()], ids=repr)
def test_an_end_of_the_program_flushes(logbus: Logbus, error: BaseException) -> None:
    name = logbus.topic()

    def leave() -> None:
        with Producer(logbus.cluster, WAITING) as producer:
            producer.send(name, b"a")
            producer.send(name, b"b")
            raise error

    with pytest.raises(type(error)) as left:
        leave()
    assert left.value is error
    assert logbus.values(name) == [["a", "b"]]


def test_a_failure_does_not_flush(logbus: Logbus) -> None:
    name = logbus.topic()
    futures = []

    def leave() -> None:
        with Producer(logbus.cluster, WAITING) as producer:
            futures.append(producer.send(name, b"a"))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        leave()
    assert isinstance(futures[0].exception(0), ProducerClosedError)
    assert logbus.values(name) == [[]]


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGTERM, 7), (signal.SIGINT, -signal.SIGINT)], ids=["TERM", "INT"]
)
def test_a_service_that_is_asked_to_end_leaves_no_record_behind(
    logbus: Logbus, number: signal.Signals, code: int
) -> None:
    name = logbus.topic()
    command = [sys.executable, "-c", textwrap.dedent(SERVICE), logbus.zookeeper, name]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "sent\n"
            process.send_signal(number)
            _, told = process.communicate(timeout=60)
        finally:
            process.kill()
    assert process.returncode == code, told
    assert logbus.values(name) == [[str(number) for number in range(1_000)]]
