"""The example services and a consumer, as users run them: processes beside a real cluster."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import urllib.error
import urllib.request
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest

from spark_logbus.client import Admin, Cluster, Consumer
from spark_logbus.local.cluster import EmbeddedCluster
from tests.helpers import wait_until

EXAMPLES = Path(__file__).parents[3] / "examples"
DEADLINE_S = 60
PARTITIONS = 4


class Program:
    """One run of an example, with what it printed."""

    def __init__(self, output: Path, name: str, *arguments: str) -> None:
        self._output = output
        with output.open("wb") as sink:
            self._process = subprocess.Popen(
                [sys.executable, EXAMPLES / f"{name}.py", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=subprocess.STDOUT,
            )

    @property
    def shown(self) -> str:
        return self._output.read_text()

    def wait_for(self, pattern: str) -> re.Match[str]:
        def search() -> re.Match[str] | None:
            assert self._process.poll() is None, self.shown
            return re.search(pattern, self.shown)

        found = wait_until(search, deadline_s=DEADLINE_S, message=f"{pattern!r} to be shown")
        assert found is not None
        return found

    def stop(self) -> str:
        """SIGTERM; all that it has shown when it has ended well."""
        self._process.terminate()
        assert self._process.wait(DEADLINE_S) == 0, self.shown
        return self.shown

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()


class Service(Program):
    def __init__(self, output: Path, *arguments: str) -> None:
        super().__init__(output, "access_log/service", *arguments, "--port", "0")

    def get(self, path: str, **headers: str) -> tuple[int, str]:
        """The status, and the id of the request."""
        address = self.wait_for(r"Listening on (\S+)\n")[1]
        asked = urllib.request.Request(address + path, headers=headers)
        try:
            with urllib.request.urlopen(asked, timeout=60) as answer:
                return answer.status, answer.headers["X-Request-ID"]
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.headers["X-Request-ID"]


def table(shown: str) -> Counter[tuple[str, int]]:
    """The newest table that a consumer has shown."""
    last = shown.rpartition("REQUESTS STATUS PATH\n")[2]
    rows = re.findall(r"^ *(\d+) +(\d+) (\S+)$", last, re.MULTILINE)
    return Counter({(path, int(status)): int(requests) for requests, status, path in rows})


@pytest.fixture
def embedded(tmp_path: Path) -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster(tmp_path / "cluster") as started:
        yield started


@pytest.fixture
def topic(embedded: EmbeddedCluster) -> str:
    name = f"t-{uuid.uuid4().hex[:8]}"
    with Cluster.from_zookeeper(embedded.zookeeper) as cluster:
        Admin(cluster).create_topic(name, partitions=PARTITIONS)
    return name


@pytest.fixture
def programs() -> Iterator[ExitStack]:
    """Ends what a failed test has left."""
    with ExitStack() as stack:
        yield stack


@pytest.fixture
def service(
    programs: ExitStack, embedded: EmbeddedCluster, topic: str, tmp_path: Path
) -> Callable[..., Service]:
    def start(*arguments: str) -> Service:
        started = Service(
            tmp_path / "service.out", topic, "--zookeeper", embedded.zookeeper, *arguments
        )
        programs.callback(started.kill)
        return started

    return start


@pytest.fixture
def consumer(
    programs: ExitStack, embedded: EmbeddedCluster, topic: str, tmp_path: Path
) -> Callable[[str], Program]:
    def start(name: str) -> Program:
        zookeeper = ["--zookeeper", embedded.zookeeper]
        started = Program(
            tmp_path / f"{name}.out", "access_log/consumer", topic, *zookeeper, "--every-s", "0.2"
        )
        programs.callback(started.kill)
        return started

    return start


def test_requests_arrive_in_the_consumers_counts(
    embedded: EmbeddedCluster,
    topic: str,
    service: Callable[..., Service],
    consumer: Callable[[str], Program],
) -> None:
    web, counting = service(), consumer("consumer")
    assert web.get("/products/1", **{"X-Request-ID": "mine"}) == (200, "mine")
    for _ in range(3):
        assert web.get("/products/1")[0] == 200
    assert web.get("/products/99")[0] == 404
    assert web.get("/nowhere")[0] == 404
    expected = {("/products/1", 200): 4, ("/products/99", 404): 1, ("/nowhere", 404): 1}
    wait_until(lambda: table(counting.shown) == expected, deadline_s=DEADLINE_S)
    assert "Access log: 6 published, 0 failed, 0 dropped." in web.stop()
    assert table(counting.stop()) == expected
    with Cluster.from_zookeeper(embedded.zookeeper) as cluster:
        positions = Admin(cluster).describe_group("access-counts").positions
    assert sum(each.committed.offset for each in positions if each.committed) == 6
    assert {each.lag for each in positions if each.committed} == {0}


@pytest.mark.long
def test_requests_just_before_the_end_are_published(
    service: Callable[..., Service], consumer: Callable[[str], Program]
) -> None:
    web = service()
    for _ in range(20):
        web.get("/")
    assert "Access log: 20 published, 0 failed, 0 dropped." in web.stop()
    counting = consumer("consumer")
    wait_until(lambda: table(counting.shown) == {("/", 200): 20}, deadline_s=DEADLINE_S)
    counting.stop()


@pytest.mark.long
def test_two_consumers_share_the_work(
    service: Callable[..., Service], consumer: Callable[[str], Program]
) -> None:
    consumers = [consumer("first"), consumer("second")]

    def partitions(one: Program) -> set[str]:
        reading: set[str] = set()
        for what, numbers in re.findall(r"^(Reading|Giving up) .*?: (.*)\.$", one.shown, re.M):
            change = set(numbers.split(", "))
            reading = reading | change if what == "Reading" else reading - change
        return reading

    wait_until(
        lambda: [len(partitions(each)) for each in consumers] == [2, 2], deadline_s=DEADLINE_S
    )
    assert set.union(*map(partitions, consumers)) == {"0", "1", "2", "3"}
    web = service()
    paths = [f"/products/{number}" for number in range(100, 140)]
    for path in paths:
        web.get(path)
    expected = {(path, 404): 1 for path in paths}
    wait_until(
        lambda: sum((table(each.shown) for each in consumers), Counter()) == expected,
        deadline_s=DEADLINE_S,
    )
    assert all(table(each.stop()) for each in consumers), "each has counted some"


@pytest.mark.long
def test_requests_while_the_broker_is_away_arrive_later(
    embedded: EmbeddedCluster,
    service: Callable[..., Service],
    consumer: Callable[[str], Program],
) -> None:
    web, counting = service(), consumer("consumer")
    web.get("/")
    wait_until(lambda: table(counting.shown) == {("/", 200): 1}, deadline_s=DEADLINE_S)
    [broker] = embedded.brokers
    broker.kill()
    for _ in range(10):
        assert web.get("/")[0] == 200
    broker.start()
    wait_until(lambda: table(counting.shown) == {("/", 200): 11}, deadline_s=DEADLINE_S)
    assert "Access log: 11 published, 0 failed, 0 dropped." in web.stop()
    counting.stop()


@pytest.mark.long
def test_a_broker_that_stays_away_fails_no_request_and_losses_are_told(
    embedded: EmbeddedCluster, service: Callable[..., Service]
) -> None:
    web = service("--buffer-bytes", "65536", "--flush-s", "0.1")
    web.get("/")
    web.get("/")
    embedded.stop()
    assert {web.get("/")[0] for _ in range(600)} == {200}, "more than the buffer takes"
    shown = web.stop()
    assert "Some requests may not be in the log" in shown
    fates = re.search(r"Access log: (\d+) published, (\d+) failed, (\d+) dropped\.", shown)
    assert fates is not None, shown
    published, failed, dropped = map(int, fates.groups())
    assert published + failed + dropped == 602
    assert published <= 2
    assert failed > 0
    assert dropped > 0


class Orders(Program):
    def __init__(self, output: Path, *arguments: str) -> None:
        super().__init__(output, "orders/service", *arguments, "--port", "0")

    def post(self, **order: object) -> tuple[int, dict[str, object]]:
        """The status and the answer."""
        address = self.wait_for(r"running on (\S+) ")[1]
        asked = urllib.request.Request(
            f"{address}/orders",
            json.dumps(order).encode(),
            {"Content-Type": "application/json"},
        )
        try:
            with urllib.request.urlopen(asked, timeout=DEADLINE_S) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            with error:
                return error.code, json.load(error)


@pytest.fixture
def orders(programs: ExitStack, embedded: EmbeddedCluster, tmp_path: Path) -> Orders:
    schema = (EXAMPLES / "orders" / "order.avsc").read_text()
    with Cluster.from_zookeeper(embedded.zookeeper) as cluster:
        Admin(cluster).create_topic("orders", partitions=PARTITIONS, value_schema=schema)
    started = Orders(tmp_path / "orders.out", "orders", "--zookeeper", embedded.zookeeper)
    programs.callback(started.kill)
    return started


def test_orders_are_in_the_topic_when_they_are_answered(
    embedded: EmbeddedCluster, orders: Orders
) -> None:
    with ThreadPoolExecutor(8) as callers:
        answers = list(
            callers.map(lambda n: orders.post(customer=f"c-{n % 3}", product=n), range(40))
        )
    assert {status for status, _ in answers} == {201}
    assert orders.post(customer="c-1", product=1, quantity=0)[0] == 422
    with Cluster.from_zookeeper(embedded.zookeeper) as cluster, Consumer(cluster) as consumer:
        consumer.assign_topics("orders")
        rows = consumer.to_arrow().select(["partition", "offset", "key", "value"]).to_pylist()
    found = {(row["partition"], row["offset"]): row["value"] for row in rows}
    expected = {
        (place["partition"], place["offset"]): {
            "customer": f"c-{n % 3}", "product": n, "quantity": 1,
        }
        for n, (_, place) in enumerate(answers)
    }  # fmt: skip
    assert found == expected
    assert {row["key"].decode() for row in rows} == {"c-0", "c-1", "c-2"}
    assert "Application shutdown complete" in orders.stop()


@pytest.mark.long
def test_orders_are_refused_while_the_broker_is_away(
    embedded: EmbeddedCluster, orders: Orders
) -> None:
    assert orders.post(customer="c", product=1)[0] == 201
    [broker] = embedded.brokers
    broker.kill()
    status, told = orders.post(customer="c", product=2)
    assert status == 503, told
    assert "were not acknowledged within 5000 ms" in str(told["detail"])
    broker.start()
    wait_until(lambda: orders.post(customer="c", product=3)[0] == 201, deadline_s=DEADLINE_S)
    orders.stop()
