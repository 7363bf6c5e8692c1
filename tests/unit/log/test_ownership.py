"""A directory that is somebody else's is refused, and nothing in it changes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from spark_logbus.broker.data_directory import BROKER_FILES, claim_identity
from spark_logbus.broker.replica.watermark import sole_replica
from spark_logbus.errors import ConfigError
from spark_logbus.log import LogConfig, LogDirectory
from tests.builders.record_batches import record_batch
from tests.fakes.disk import PowerCutError, SimulatedDisk
from tests.fakes.log_directory import TOPIC_ID, TP, Broker, offsets_from


def open_directory(path: Path, claim: Callable[[], None] = lambda: None) -> None:
    logs = LogDirectory(
        path, defaults=LogConfig(), known_files=BROKER_FILES, watermark=sole_replica
    )
    logs.open(claim)
    logs.close()


def contents(path: Path) -> dict[str, bytes]:
    return {
        str(each.relative_to(path)): each.read_bytes() if each.is_file() else b"(directory)"
        for each in path.rglob("*")
    }


def put(path: Path, content: str = "somebody's") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)
    return path


@pytest.mark.parametrize(
    "name",
    [
        "photo.jpg",
        "documents/letter.txt",
        "backup-1/partition",  # as a log is called, with a file as one has it
        f"{TOPIC_ID}-0.deleted/thesis.txt",
        f"{TOPIC_ID}-0.creating/thesis.tmp",
        "photos.deleted/1.jpg",
        "checkpoint/model.bin",
        "checkpoint",
        "clean-shutdown",
        "flights-0/00000000000000000000.log",
    ],
)
def test_a_directory_of_somebody_elses_is_refused_untouched(tmp_path: Path, name: str) -> None:
    put(tmp_path / name)
    put(tmp_path / ".profile")
    before = contents(tmp_path)
    with pytest.raises(ConfigError, match=r"not empty and not a data directory.*an empty one"):
        open_directory(tmp_path)
    assert contents(tmp_path) == before


def test_the_refusal_names_what_is_there(tmp_path: Path) -> None:
    for number in range(9):
        put(tmp_path / f"{number}.jpg")
    with pytest.raises(ConfigError, match=r"holds 0\.jpg, 1\.jpg, .*4\.jpg and 4 more\. Nothing"):
        open_directory(tmp_path)


def test_what_a_file_system_or_a_first_start_left_is_no_obstacle(tmp_path: Path) -> None:
    (tmp_path / "lost+found").mkdir(mode=0)
    (tmp_path / ".Trash").mkdir()
    for name in (".lock", ".DS_Store", "broker.id.tmp", "broker.id.new", "checkpoint.tmp"):
        put(tmp_path / name)
    open_directory(tmp_path)
    open_directory(tmp_path / "to" / "be" / "made")


@pytest.mark.parametrize("kept", ["broker.id", "checkpoint", str(TP)])
def test_data_directories_of_all_times_are_taken(tmp_path: Path, kept: str) -> None:
    """One trace of logbus's is enough, whatever else was lost or put beside it."""
    data = tmp_path / "data"
    broker = Broker(data)
    broker.append(record_batch(2))
    broker.directory.close()
    claim_identity(data, 1)
    put(data / "notes.txt")
    for path in data.iterdir():
        if path.name not in (kept, "notes.txt"):
            path.rename(tmp_path / path.name)
    open_directory(data)
    assert (data / "notes.txt").read_text() == "somebody's"
    broker.start()
    assert (broker.directory.get(TP) is not None) == (kept == str(TP))


def test_only_leftovers_that_logbus_made_are_removed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    broker = Broker(tmp_path / "data")
    broker.append(record_batch(2))
    broker.directory.close()
    data = broker.path
    ours = ["-0.deleted", "-0.1.deleted", "-12.creating"]
    for suffix in ours:
        put(data / f"{TOPIC_ID}{suffix}" / f"{0:020d}.log.deleted")
        put(data / f"{TOPIC_ID}{suffix}" / f"{0:020d}.producers")
    marked = data / f"{TOPIC_ID}-3.deleted"
    marked.mkdir()
    (marked / "partition").write_bytes((data / str(TP) / "partition").read_bytes())
    put(marked / "of-a-later-release")
    foreign = [
        put(data / "photos.deleted" / "1.jpg"),
        put(data / f"{TOPIC_ID}-1.deleted" / "1.jpg"),
        put(data / f"{TOPIC_ID}-2.creating" / "partition"),
        put(data / f"{TOPIC_ID}-2.creating" / "deeper" / f"{0:020d}.log"),
        put(data / "x.creating"),
    ]
    broker.start()
    left = sorted(path.name for path in data.glob("*.deleted")) + sorted(
        path.name for path in data.glob("*.creating")
    )
    assert left == [
        f"{TOPIC_ID}-1.deleted", "photos.deleted", f"{TOPIC_ID}-2.creating", "x.creating",
    ]  # fmt: skip
    assert [path.read_text() for path in foreign] == ["somebody's"] * len(foreign)
    assert caplog.text.count("was not made by logbus") == 3
    assert offsets_from(broker.log(), 0) == [0]


def test_a_directory_of_another_brokers_is_left_as_it_is(tmp_path: Path) -> None:
    broker = Broker(tmp_path)
    broker.append(record_batch(2))
    broker.directory.close()
    claim_identity(tmp_path, 1)
    put(tmp_path / f"{TOPIC_ID}-0.deleted" / f"{0:020d}.log")
    before = contents(tmp_path)
    with pytest.raises(ConfigError, match="belongs to broker '1'"):
        open_directory(tmp_path, lambda: claim_identity(tmp_path, 2))
    assert contents(tmp_path) == before
    open_directory(tmp_path, lambda: claim_identity(tmp_path, 1))


def test_a_crash_in_the_first_start_leaves_a_usable_directory() -> None:
    disk = SimulatedDisk()
    Broker(files=disk)
    for at in range(len(disk.operations)):
        disk = SimulatedDisk()
        disk.cut_power_at = at
        with pytest.raises(PowerCutError):
            Broker(files=disk)
        disk.kill()
        disk.cut_power_at = None
        Broker(files=disk).directory.close()
