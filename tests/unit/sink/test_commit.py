"""What a task of a micro-batch says of its write."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from spark_logbus.sink import commit

DESCRIPTION = "{}\nid = 9e\nrunId = 4b\nbatch = 7"


@pytest.mark.parametrize(
    ("setting", "name", "checkpoint"),
    [
        ("/data/checkpoints", "orders", "/data/checkpoints/orders"),
        (
            "file:///data/checkpoints/",
            "orders by day",
            "file:///data/checkpoints/orders by day",
        ),
        ("/data/checkpoints", "", None),  # without a name it is another one at each start
        (None, "orders", None),
    ],
)
def test_the_checkpoint_is_found_by_the_setting_for_all_queries(
    monkeypatch: pytest.MonkeyPatch, setting: str | None, name: str, checkpoint: str | None
) -> None:
    properties = {
        "sql.streaming.queryId": "9e",
        "streaming.sql.batchId": "7",
        "spark.jobGroup.id": "4b",
        "spark.job.description": DESCRIPTION.format(name),
        "spark.sql.streaming.checkpointLocation": setting,
    }
    context = SimpleNamespace(getLocalProperty=properties.get)
    monkeypatch.setattr(commit, "TaskContext", SimpleNamespace(get=lambda: context))
    write = commit.micro_batch_write("secret")
    assert (write.identity.version, write.checkpoint) == (7, checkpoint)
    assert commit.micro_batch_write("secret") == write, "in all tasks"
    assert commit.micro_batch_write("another").number != write.number, "who knows the query does"
