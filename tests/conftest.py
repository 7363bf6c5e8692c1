"""Fixtures for tests of all kinds: a real ZooKeeper, and a clean corner of it per test."""

from __future__ import annotations

import gc
import logging
import os
import signal
import sys
import uuid
from collections.abc import Callable, Generator, Iterator
from pathlib import Path

import pytest
from hypothesis import settings
from kazoo.client import KazooClient

from spark_logbus.local.java import ensure_java_home
from spark_logbus.local.zookeeper import EmbeddedZooKeeper
from tests.servers import jvm

#: Of the examples that Hypothesis tries in a run of all tests, those of a shorter run.
SHORT_RUN_PERCENT = 30
#: Of this process, where a machine may allow it 1,024 and a test may want half of them.
MANY_DESCRIPTORS = 256
INTEGRATION = Path(__file__).parent / "integration"
#: Set on some machines, these hide what programs hold back, or change where they look.
MACHINES_OWN = ("PYTHONUNBUFFERED", "LOGBUS_ZOOKEEPER", "COLUMNS")


def pytest_configure(config: pytest.Config) -> None:
    """Has Spark's workers run this very Python, and its JVMs any Java that logbus would choose (see
    tests/servers/jvm.py). Hypothesis tries fewer examples where the longer tests are left out (see
    tests/property/examples.py); how long one takes on a machine that does other work tells nothing.

    Started in the background by a shell, tests ignore SIGINT, and programs inherit that; those
    under test are to hear it.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for name in MACHINES_OWN:
        os.environ.pop(name, None)
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    ensure_java_home()
    is_short = "not long" in config.option.markexpr
    archive = jvm.set_up(os.environ, config.rootpath / ".pytest_cache" / "jvm")
    if not is_short and config.getoption("numprocesses", None):  # not in its workers
        jvm.make(archive)
    settings.register_profile("whole run", deadline=None)
    settings.register_profile("short run", deadline=None, max_examples=SHORT_RUN_PERCENT)
    settings.load_profile("short run" if is_short else "whole run")


@pytest.hookimpl(tryfirst=True)  # before tests are chosen by their marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks the tests that take the Spark session, and puts the files with the longest tests first,
    so that no processor is left alone with one of them at the end of a run: those with the Spark
    session, then those with servers, then all others."""
    with_spark = set()
    for item in items:
        if "spark" in getattr(item, "fixturenames", ()):
            item.add_marker("spark")
            with_spark.add(item.path)

    def rank(item: pytest.Item) -> int:
        if item.path in with_spark:
            return 0
        return 1 if INTEGRATION in item.path.parents else 2

    items.sort(key=rank)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Writes what tests have logged so that it can go to the process that reports: a lone
    surrogate would end the one that runs the test."""
    report = yield
    report.sections = [
        (name, text.encode(errors="backslashreplace").decode()) for name, text in report.sections
    ]
    return report


def pytest_runtest_logfinish() -> None:
    """Tests abandon logs, as a crash does: their files are open until they are collected."""
    if len(os.listdir("/proc/self/fd")) > MANY_DESCRIPTORS:
        gc.collect()


@pytest.fixture
def no_collector() -> Iterator[None]:
    """Collects what earlier tests have abandoned, and collects nothing while this test runs."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.fixture(scope="session")
def zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedZooKeeper]:
    """One server for the whole run. A test that stops or kills a server starts its own."""
    with EmbeddedZooKeeper(tmp_path_factory.mktemp("zookeeper"), heap_mb=128) as server:
        yield server


@pytest.fixture(scope="session")
def _zookeeper_client(zookeeper: EmbeddedZooKeeper) -> Iterator[KazooClient]:
    aside = logging.getLogger("tests.zookeeper")  # no test's log is to have what it says
    aside.propagate = False
    client = KazooClient(hosts=zookeeper.address, logger=aside)
    client.start(timeout=60)
    yield client
    client.stop()
    client.close()


@pytest.fixture(scope="session")
def new_chroot(zookeeper: EmbeddedZooKeeper, _zookeeper_client: KazooClient) -> Callable[[], str]:
    """Makes a fresh node, which is empty, and returns a connect string ``host:port/<node>``."""

    def make() -> str:
        node = f"/{uuid.uuid4().hex}"
        _zookeeper_client.create(node)
        return f"{zookeeper.address}{node}"

    return make


@pytest.fixture
def chroot(new_chroot: Callable[[], str]) -> str:
    """A connect string of a corner of ZooKeeper that the test has for itself."""
    return new_chroot()
