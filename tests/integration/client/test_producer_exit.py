"""The ways out of a producer's ``with`` block, with a real broker."""

from __future__ import annotations

import signal
import subprocess
import sys
import textwrap

import pytest

from spark_logbus.client import Consumer, Producer, ProducerConfig
from spark_logbus.errors import ProducerClosedError
from tests.integration.client.short_program import run_program
from tests.servers.cluster import Logbus

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


CLIENTS = """
import asyncio, atexit, sys, threading
from spark_logbus.client import AsyncProducer, Cluster, Producer, ProducerConfig

topic = sys.argv[1]
waiting = ProducerConfig(linger_ms=600_000)
"""
UNCLOSED = {
    "kept": """
producer = Producer(Cluster.from_zookeeper(), waiting)
producer.send(topic, b"a")
""",
    "forgotten": """
def publish():
    Producer(Cluster.from_zookeeper(), waiting).send(topic, b"a")
publish()
""",
    "closed by atexit": """
producer = Producer(Cluster.from_zookeeper(), waiting)
atexit.register(producer.close)
atexit.register(producer.send, topic, b"a")
producer.send_many(topic, [])
""",
    "of a thread that outlives the main one": """
def work():
    threading.main_thread().join()
    Producer(Cluster.from_zookeeper(), waiting).send(topic, b"a")
threading.Thread(target=work).start()
""",
    "asynchronous, in such a thread": """
async def publish():
    producer = AsyncProducer(Cluster.from_zookeeper())
    await producer.send(topic, b"a")
def work():
    threading.main_thread().join()
    asyncio.run(publish())
threading.Thread(target=work).start()
""",
}


@pytest.mark.parametrize("program", UNCLOSED.values(), ids=UNCLOSED)
def test_a_producer_that_nobody_closes_sends_at_the_end(logbus: Logbus, program: str) -> None:
    name = logbus.topic()
    ended = run_program(CLIENTS + program, name, zookeeper=logbus.zookeeper)
    assert ended.stderr == ""
    assert logbus.values(name) == [["a"]]


def test_a_client_may_be_imported_after_the_main_thread_has_ended(logbus: Logbus) -> None:
    name = logbus.topic()
    program = """
import sys, threading
def work():
    threading.main_thread().join()
    from spark_logbus.client import Cluster, Producer, ProducerConfig
    waiting = ProducerConfig(linger_ms=600_000)
    Producer(Cluster.from_zookeeper(), waiting).send(sys.argv[1], b"a")
threading.Thread(target=work).start()
"""
    ended = run_program(program, name, zookeeper=logbus.zookeeper)
    assert ended.stderr == ""
    assert logbus.values(name) == [["a"]]


def test_an_unclosed_producer_tells_at_the_end_what_it_could_not_send(logbus: Logbus) -> None:
    """Another one, whose broker is there, is not held up by it."""
    name = logbus.topic()
    program = """
cluster = Cluster.from_zookeeper()
lost = Producer(cluster, waiting)
lost.send_many(topic, [])
cluster.pool.take = lambda *_: (_ for _ in ()).throw(BrokerUnavailableError("gone"))
lost.send(topic, b"lost")
producer = Producer(Cluster.from_zookeeper(), waiting)
producer.send(topic, b"a")
"""
    imports = "from spark_logbus.errors import BrokerUnavailableError"
    ended = run_program(CLIENTS + imports + program, name, zookeeper=logbus.zookeeper)
    assert "because the program ends: " in ended.stderr
    assert "Traceback" not in ended.stderr
    assert logbus.values(name) == [["a"]]


def test_consumers_that_nobody_closes_end_without_a_word(logbus: Logbus, group: str) -> None:
    name = logbus.topic()
    logbus.produce(name, ["a"])
    program = """
from spark_logbus.client import Admin, AsyncConsumer, Consumer, ConsumerConfig
cluster = Cluster.from_zookeeper()
group = ConsumerConfig(group=sys.argv[2])
consumer = Consumer(cluster, group)
consumer.subscribe(topic)
assert [record.value for record in consumer.poll(60)] == [b"a"]
async def read():
    reading = AsyncConsumer(cluster, ConsumerConfig(start="earliest"))
    await reading.assign_topics(topic)
    assert (await anext(reading)).value == b"a"
asyncio.run(read())
Admin(cluster).describe([topic])
"""
    ended = run_program(CLIENTS + program, name, group, zookeeper=logbus.zookeeper)
    assert ended.stderr == ""


def test_an_audited_producer_that_nobody_closes_ends_its_counter(logbus: Logbus) -> None:
    name, audit_topic = logbus.topic(), logbus.topic_name()
    program = """
from spark_logbus.audit import AuditConfig, AuditInterceptor
cluster = Cluster.from_zookeeper()
audit = AuditInterceptor(cluster, "unclosed", config=AuditConfig(topic=sys.argv[2]))
Producer(cluster, waiting, interceptors=[audit]).send(topic, b"a")
"""
    ended = run_program(CLIENTS + program, name, audit_topic, zookeeper=logbus.zookeeper)
    assert ended.stderr == ""
    assert logbus.values(name) == [["a"]]
    with Consumer(logbus.cluster) as consumer:
        consumer.assign_topics(audit_topic)
        reports = consumer.to_arrow().column("value").to_pylist()
    assert reports[-1]["last"], "its counter ended, and is not taken for dead"
    assert [reports[-1]["topic"], reports[-1]["records"]] == [name, 1]
