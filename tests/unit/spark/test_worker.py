"""The clusters that a task's process keeps."""

from __future__ import annotations

from typing import cast

from spark_logbus.client import Bootstrap, Cluster
from spark_logbus.spark.worker import MAX_CLUSTERS, ClusterPool


class FakeCluster:
    def __init__(self) -> None:
        self.closed = False

    def close(self) -> None:
        self.closed = True


def test_one_cluster_for_one_bootstrap_and_the_oldest_closed() -> None:
    made: list[FakeCluster] = []

    def connect(bootstrap: Bootstrap) -> Cluster:
        made.append(FakeCluster())
        return cast(Cluster, made[-1])

    pool = ClusterPool(connect)
    first = Bootstrap.of("h:1")
    assert pool.get(first) is pool.get(first)
    for port in range(2, MAX_CLUSTERS + 1):
        pool.get(Bootstrap.of(f"h:{port}"))
    pool.get(first)
    pool.get(Bootstrap.of("h:99"))
    assert [one.closed for one in made] == [False, True, *[False] * (MAX_CLUSTERS - 1)]
    pool.close()
    assert all(one.closed for one in made)
