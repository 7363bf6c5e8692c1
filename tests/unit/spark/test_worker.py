"""The clusters that a task's process keeps."""

from __future__ import annotations

from dataclasses import replace
from typing import cast

from spark_logbus.client import Bootstrap, Cluster
from spark_logbus.client.cluster.access import Access, Token
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


def test_no_cluster_is_shared_by_tokens_of_different_scopes() -> None:
    def connect(bootstrap: Bootstrap) -> Cluster:
        del bootstrap
        return cast(Cluster, FakeCluster())

    def with_token(value: bytes, scope: str) -> Bootstrap:
        return replace(Bootstrap.of("h:1"), access=Access(token=Token(value, 10, scope)))

    pool = ClusterPool(connect)
    annas = pool.get(with_token(b"1", "anna reads t"))
    assert pool.get(with_token(b"2", "anna reads t")) is annas
    others = [
        pool.get(Bootstrap.of("h:1")),
        pool.get(with_token(b"3", "anna reads u")),
        pool.get(with_token(b"4", "bert reads t")),
    ]
    assert len({id(each) for each in [annas, *others]}) == 4
