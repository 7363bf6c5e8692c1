"""A new stream's look at ZooKeeper, which goes on while its process imports the rest."""

from __future__ import annotations

import pickle
import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest

from pyspark_logbus import DefaultSource
from spark_logbus.coordination.cluster.brokers import BrokerRegistry
from spark_logbus.datasource.columns import full_schema
from spark_logbus.datasource.source import reader_of_stream
from spark_logbus.errors import CoordinationError, ZooKeeperAddressError
from spark_logbus.model import BrokerAddress
from spark_logbus.spark.discovery import Discovery
from spark_logbus.spark.driver import DriverConnections
from spark_logbus.spark.seen_brokers import MAX_AGE_US, SeenBrokers
from spark_logbus.zookeeper import Session, SessionState
from tests.fakes.clock import ManualClock
from tests.helpers import wait_until
from tests.servers.cluster import Logbus
from tests.servers.ports import refusing_address

ADDRESS = BrokerAddress(1, "127.0.0.1", 9)


@pytest.fixture
def registered(chroot: str) -> Iterator[str]:
    """A chroot with one broker in it, which does not run."""
    with Session(chroot, client_name="test") as session:
        registry = BrokerRegistry(session)
        registry.register(ADDRESS, version="test")
        yield chroot


def begun(zookeeper: str, *, keep_session: bool = False) -> Discovery:
    discovery = Discovery(zookeeper, keep_session=keep_session)
    discovery.begin()
    return discovery


def test_it_finds_the_registered_brokers(registered: str) -> None:
    assert begun(registered).result() == ([ADDRESS], None)


def test_a_group_takes_over_the_session_that_asked(logbus: Logbus) -> None:
    discovery = begun(logbus.zookeeper, keep_session=True)
    _, session = discovery.result()
    assert session is not None
    link = DriverConnections(logbus.zookeeper, group="discovered", discovery=discovery)
    assert link.progress() is not None
    assert len(link.cluster().brokers) == 2
    states = [session.state]
    link.close()
    states.append(session.state)
    assert states == [SessionState.CONNECTED, SessionState.CLOSED]


def test_what_it_meets_is_raised_once_and_then_asked_anew(logbus: Logbus, chroot: str) -> None:
    link = DriverConnections(logbus.zookeeper, discovery=begun(f"{chroot}/missing"))
    with pytest.raises(ZooKeeperAddressError, match="no such chroot"):
        link.cluster()
    assert len(link.cluster().brokers) == 2
    link.close()


def test_closing_ends_a_look_that_nobody_answers() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        discovery = begun(f"127.0.0.1:{listener.getsockname()[1]}/logbus")
        link = DriverConnections("nowhere", discovery=discovery)
        connection, _ = listener.accept()  # it is under way
        with connection:
            link.close()
            with pytest.raises(CoordinationError, match="closed"):
                discovery.result()


def test_a_session_that_is_not_kept_is_closed(
    registered: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed: list[str] = []
    close = Session.close

    def watched(session: Session) -> None:
        close(session)
        closed.append(session.client_name)

    monkeypatch.setattr(Session, "close", watched)
    begun(registered).result()
    wait_until(lambda: closed == ["spark-driver"])


# -- brokers that were seen when the DataFrame was made -----------------------------------

_PLANNER = """
import pickle, sys
import pyspark.sql.streaming.python_streaming_source_runner as runner
sys.modules["__main__"].__spec__ = runner.__spec__  # as Spark starts it
source, schema = pickle.load(sys.stdin.buffer)
reader = source.streamReader(schema)
print(sorted(reader.initialOffset()) != [], "kazoo" in sys.modules)
"""


def planned(source: DefaultSource) -> str:
    """Returns what a stream's process says of its first offset, and whether it asked ZooKeeper."""
    done = subprocess.run(
        [sys.executable, "-c", _PLANNER],
        input=pickle.dumps((source, full_schema(include_headers=False))),
        capture_output=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode().strip()


def test_a_stream_goes_to_the_brokers_that_told_its_columns(logbus: Logbus) -> None:
    """ZooKeeper is not asked, nor is its client imported, unless a group is kept there or nobody
    has told the columns."""
    topic = logbus.topic()
    options = {"zookeeper": logbus.zookeeper, "subscribe": topic}
    source = DefaultSource(options)
    source.schema()
    assert planned(source) == "True False"
    assert planned(DefaultSource(options)) == "True True"
    grouped = DefaultSource(options | {"group": topic})
    grouped.schema()
    assert planned(grouped) == "True True"


def test_brokers_that_have_moved_since_are_found_in_zookeeper(logbus: Logbus) -> None:
    with refusing_address() as address:
        host, _, port = address.rpartition(":")
        link = DriverConnections(logbus.zookeeper, brokers=[(host, int(port))])
        assert len(link.cluster().brokers) == 2
        link.close()


@pytest.mark.parametrize(
    ("age_us", "are_fresh"),
    [(0, True), (MAX_AGE_US, True), (MAX_AGE_US + 1, False), (-1, False), (10**18, False)],
)
def test_brokers_are_believed_for_a_while(age_us: int, are_fresh: bool) -> None:
    clock = ManualClock()
    assert SeenBrokers((("h", 1),), clock.now_us() - age_us).are_fresh(clock) == are_fresh


def test_old_sights_are_not_gone_by(logbus: Logbus) -> None:
    options = {"zookeeper": logbus.zookeeper, "subscribe": "any"}
    schema = full_schema(include_headers=False)
    at_us = 1
    reader = reader_of_stream(options, schema, SeenBrokers((("nowhere", 1),), at_us))
    assert reader._brokers == ()
