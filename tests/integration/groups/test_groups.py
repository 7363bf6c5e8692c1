"""Committed offsets and rewinds in a real ZooKeeper."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from spark_logbus.coordination.groups.offsets import GroupOffsets
from spark_logbus.coordination.groups.rewinds import GroupRewinds
from spark_logbus.errors import GroupRewoundError, InvalidNameError, InvalidRequestError
from spark_logbus.local.zookeeper import EmbeddedZooKeeper
from spark_logbus.model import RewindMark, TopicPartition
from spark_logbus.zookeeper import CorruptNodeError, Session
from spark_logbus.zookeeper.nodes import Nodes
from spark_logbus.zookeeper.transactions import MAX_TRANSACTION_BYTES, Create, Operation, size_of
from tests.servers.zookeeper import MULTI, Proxy, put, session

A0 = TopicPartition("a", 0)
A1 = TopicPartition("a", 1)
B0 = TopicPartition("b", 0)


@pytest.fixture
def opened(chroot: str) -> Iterator[Session]:
    with session(chroot) as live:
        yield live


@pytest.fixture
def offsets(opened: Session) -> GroupOffsets:
    return GroupOffsets(opened)


@pytest.fixture
def rewinds(opened: Session) -> GroupRewinds:
    return GroupRewinds(opened)


def plain(offsets: GroupOffsets, group: str = "g") -> dict[TopicPartition, int]:
    return {
        topic_partition: committed.offset
        for topic_partition, committed in offsets.committed(group).items()
    }


class TestCommit:
    def test_what_was_committed_is_read_back(self, offsets: GroupOffsets) -> None:
        assert offsets.committed("g") == {}
        offsets.commit("g", {A0: 5, A1: 7, B0: 0}, actor="query-1", topic_ids={"a": "id-a"})
        found = offsets.committed("g")
        assert plain(offsets) == {A0: 5, A1: 7, B0: 0}
        assert found[A0].actor == "query-1"
        assert found[A0].topic_id == "id-a"
        assert found[B0].topic_id is None
        assert found[A0].rewind_epoch == 0
        assert found[A0].committed_at_us == found[B0].committed_at_us > 0
        assert offsets.committed("g", [A1, TopicPartition("c", 3)]) == {A1: found[A1]}
        assert offsets.committed("other") == {}
        assert offsets.groups() == ["g"]

    def test_an_empty_commit_does_nothing(self, offsets: GroupOffsets) -> None:
        offsets.commit("g", {}, actor="x")
        assert offsets.groups() == []

    def test_a_later_commit_wins_backward_too(self, offsets: GroupOffsets) -> None:
        offsets.commit("g", {A0: 5, A1: 5}, actor="x")
        offsets.commit("g", {A0: 3, A1: 9}, actor="x")
        assert plain(offsets) == {A0: 3, A1: 9}

    def test_without_backward_a_larger_offset_stays(self, offsets: GroupOffsets) -> None:
        offsets.commit("g", {A0: 5, A1: 5}, actor="first")
        offsets.commit("g", {A0: 3, A1: 9, B0: 1}, actor="second", allow_backward=False)
        assert plain(offsets) == {A0: 5, A1: 9, B0: 1}
        assert offsets.committed("g")[A0].actor == "first"

    def test_an_earlier_topics_offset_does_not_stay(self, offsets: GroupOffsets) -> None:
        offsets.commit("g", {A0: 500}, actor="x", topic_ids={"a": "old"})
        offsets.commit("g", {A0: 3}, actor="x", topic_ids={"a": "new"}, allow_backward=False)
        assert plain(offsets) == {A0: 3}

    def test_bad_arguments(self, offsets: GroupOffsets) -> None:
        with pytest.raises(InvalidRequestError, match="offset -1 of a-0"):
            offsets.commit("g", {A0: -1}, actor="x")
        with pytest.raises(InvalidRequestError, match="got -1 of a"):
            offsets.commit("g", {TopicPartition("a", -1): 0}, actor="x")
        for group in ("", "..", "a/b", "g" * 300):
            with pytest.raises(InvalidNameError):
                offsets.commit(group, {A0: 1}, actor="x")
        with pytest.raises(InvalidNameError):
            offsets.commit("g", {TopicPartition("../x", 0): 1}, actor="x")

    def test_more_partitions_than_one_transaction_holds(
        self, offsets: GroupOffsets, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("spark_logbus.zookeeper.transactions.MAX_TRANSACTION_BYTES", 20_000)
        monkeypatch.setattr("spark_logbus.zookeeper.nodes.MAX_TRANSACTION_BYTES", 20_000)
        many = {TopicPartition("wide", p): p for p in range(300)}
        offsets.commit("g", many, actor="x")
        assert plain(offsets) == many

    def test_a_commit_in_parts_survives_a_lost_reply(
        self,
        zookeeper: EmbeddedZooKeeper,
        chroot: str,
        offsets: GroupOffsets,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        monkeypatch.setattr("spark_logbus.zookeeper.transactions.MAX_TRANSACTION_BYTES", 5_000)
        many = {TopicPartition("wide", p): 7 for p in range(100)}
        with Proxy(zookeeper.address) as proxy, session(proxy.connect_string(chroot)) as unlucky:
            proxy.lose_reply(MULTI)
            GroupOffsets(unlucky).commit("g", many, actor="x", expected_mark=RewindMark(0))
            assert proxy.lost == 1
            tree = Nodes(unlucky)
            nodes = tree.get_many(f"/consumers/g/offsets/wide/{p}" for p in range(100))
        assert {node.version for node in nodes.values() if node is not None} == {0}
        assert plain(offsets) == many

    def test_zookeeper_takes_the_largest_transaction_that_we_send(self, opened: Session) -> None:
        tree = Nodes(opened)
        parts: list[Operation] = [Create(f"/part-{i}", b"x" * 299_800) for i in range(3)]
        assert 0.999 < size_of(parts) / MAX_TRANSACTION_BYTES <= 1
        tree.transact("write a lot", parts, deadline=opened.deadline())
        assert tree.exists("/part-2")

    def test_concurrent_commits_never_mix_and_never_go_back(
        self, offsets: GroupOffsets, chroot: str
    ) -> None:
        """Each commit gives all partitions the same offset; the largest must remain."""
        topic_partitions = [TopicPartition("t", p) for p in range(5)]

        def commits(start: int) -> None:
            with session(chroot, name=f"c{start}") as other:
                mine = GroupOffsets(other)
                for offset in range(start, 60, 4):
                    mine.commit(
                        "g",
                        dict.fromkeys(topic_partitions, offset),
                        actor=str(start),
                        allow_backward=False,
                    )

        with ThreadPoolExecutor(4) as pool:
            running = [pool.submit(commits, start) for start in range(4)]
            seen = dict.fromkeys(topic_partitions, -1)
            while not all(done.done() for done in running):
                now = plain(offsets)
                assert all(
                    now.get(topic_partition, -1) >= before
                    for topic_partition, before in seen.items()
                )
                seen.update(now)
            for done in running:
                done.result()
        assert plain(offsets) == dict.fromkeys(topic_partitions, 59)

    def test_a_commit_whose_reply_was_lost_is_not_repeated(
        self, zookeeper: EmbeddedZooKeeper, chroot: str, offsets: GroupOffsets
    ) -> None:
        offsets.commit("g", {A0: 1, A1: 1}, actor="x")

        def meanwhile() -> None:
            offsets.commit("g", {A1: 99}, actor="another")

        with Proxy(zookeeper.address) as proxy, session(proxy.connect_string(chroot)) as unlucky:
            proxy.lose_reply(MULTI, before_cut=meanwhile)
            GroupOffsets(unlucky).commit("g", {A0: 2, A1: 2}, actor="unlucky")
            assert proxy.lost == 1
        # Repeated blindly, it would have overwritten the commit that came after it.
        assert plain(offsets) == {A0: 2, A1: 99}
        node = Nodes(offsets._nodes.session).get("/consumers/g/offsets/a/0")
        assert node is not None
        assert node.version == 1

    def test_garbage_in_a_node_is_a_typed_error_that_names_it(
        self, offsets: GroupOffsets, chroot: str
    ) -> None:
        put(chroot, "/consumers/g/offsets/a/0", b"12")
        with pytest.raises(CorruptNodeError, match="/consumers/g/offsets/a/0"):
            offsets.committed("g")

    def test_a_deleted_group_is_forgotten(
        self, offsets: GroupOffsets, rewinds: GroupRewinds, opened: Session
    ) -> None:
        offsets.commit("g", {A0: 1, B0: 2}, actor="x")
        rewinds.record("g", {A0: 0}, reason="test", actor="x")
        offsets.delete("g")
        assert offsets.groups() == []
        assert offsets.committed("g") == {}
        assert rewinds.epoch("g") == 0
        assert Nodes(opened).children("/consumers") == []
        offsets.delete("g")

    def test_a_group_with_members_is_not_deleted(self, offsets: GroupOffsets, chroot: str) -> None:
        put(chroot, "/consumers/g/ids/reader-1", b"{}")
        with pytest.raises(
            InvalidRequestError, match=r"1 live member \(reader-1\); stop them before"
        ):
            offsets.delete("g")

    @pytest.mark.parametrize("moment", ["before the check", "after the check"])
    def test_who_joins_a_group_while_it_is_deleted_keeps_it(
        self, offsets: GroupOffsets, chroot: str, monkeypatch: pytest.MonkeyPatch, moment: str
    ) -> None:
        offsets.commit("g", {A0: 1}, actor="x")
        real = offsets._refuse_in_use

        def join() -> None:
            monkeypatch.setattr(offsets, "_refuse_in_use", real)
            put(chroot, "/consumers/g/ids/reader-1", b"{}")

        def check(*asked: Any) -> None:
            if moment == "before the check":
                join()
            real(*asked)
            join()

        monkeypatch.setattr(offsets, "_refuse_in_use", check)
        with pytest.raises(InvalidRequestError, match=r"1 live member \(reader-1\)"):
            offsets.delete("g")
        assert plain(offsets) == {A0: 1}

    def test_one_topic_is_forgotten_and_the_rest_stays(
        self, offsets: GroupOffsets, rewinds: GroupRewinds
    ) -> None:
        offsets.commit("g", {A0: 1, A1: 2, B0: 3}, actor="q")
        rewinds.record("g", {A0: 0}, reason="w", actor="ann")
        assert offsets.forget("g", ["a", "none", "a"]) == ["a"]
        assert offsets.forget("g", ["a"]) == []
        assert plain(offsets) == {B0: 3}
        assert rewinds.epoch("g") == 1
        offsets.commit("g", {A0: 4}, actor="q", expected_mark=RewindMark(1))
        assert plain(offsets) == {A0: 4, B0: 3}

    def test_what_was_forgotten_is_told_though_the_reply_was_lost(
        self, zookeeper: EmbeddedZooKeeper, chroot: str, offsets: GroupOffsets
    ) -> None:
        offsets.commit("g", {A0: 1, B0: 1}, actor="x")
        with Proxy(zookeeper.address) as proxy, session(proxy.connect_string(chroot)) as unlucky:
            proxy.lose_reply(MULTI)
            assert GroupOffsets(unlucky).forget("g", ["b", "a"]) == ["b", "a"]
            assert proxy.lost == 1
        assert plain(offsets) == {}


class TestRewinds:
    def test_a_rewind_sets_offsets_and_is_remembered(
        self, offsets: GroupOffsets, rewinds: GroupRewinds
    ) -> None:
        offsets.commit("g", {A0: 50, A1: 60}, actor="q", topic_ids={"a": "id-a"})
        assert rewinds.epoch("g") == 0
        assert rewinds.history("g") == []
        first = rewinds.record("g", {A0: 10, B0: 3}, reason="bad deploy", actor="ann")
        assert (first.epoch, first.reason, first.actor) == (1, "bad deploy", "ann")
        assert first.positions == {A0: 10, B0: 3}
        assert plain(offsets) == {A0: 10, A1: 60, B0: 3}
        found = offsets.committed("g")
        assert (found[A0].rewind_epoch, found[A0].actor, found[A0].topic_id) == (1, "ann", "id-a")
        assert found[A1].rewind_epoch == 0
        second = rewinds.record("g", {A0: 0}, reason="again", actor="ann")
        assert rewinds.epoch("g") == 2
        assert rewinds.history("g") == [first, second]

    def test_a_commit_of_an_earlier_rewind_epoch_is_refused(
        self, offsets: GroupOffsets, rewinds: GroupRewinds
    ) -> None:
        offsets.commit("g", {A0: 50}, actor="q", expected_mark=RewindMark(0))
        rewinds.record("g", {A0: 10}, reason="w", actor="ann")
        with pytest.raises(GroupRewoundError, match="rewind epoch 0, the group is at 1"):
            offsets.commit("g", {A0: 60}, actor="q", expected_mark=RewindMark(0))
        assert plain(offsets) == {A0: 10}
        offsets.commit("g", {A0: 20}, actor="q", expected_mark=RewindMark(1))
        offsets.commit("g", {A1: 1}, actor="q")
        assert {c.rewind_epoch for c in offsets.committed("g").values()} == {1}

    def test_a_recreated_groups_rewind_is_another_rewind(
        self, offsets: GroupOffsets, rewinds: GroupRewinds
    ) -> None:
        first = rewinds.record("g", {A0: 10}, reason="w", actor="ann").mark
        assert rewinds.mark("g") == first
        offsets.commit("g", {A0: 50}, actor="q", expected_mark=RewindMark(1, first.token))
        offsets.delete("g")
        second = rewinds.record("g", {A0: 7}, reason="w", actor="ann").mark
        assert second.epoch == first.epoch == 1
        with pytest.raises(GroupRewoundError, match="was rewound"):
            offsets.commit("g", {A0: 60}, actor="q", expected_mark=RewindMark(1, first.token))
        assert plain(offsets) == {A0: 7}
        offsets.commit(
            "g", {A0: 8}, actor="q", expected_mark=RewindMark(1)
        )  # of an earlier release

    def test_a_rewind_of_an_earlier_release_has_no_token(
        self, offsets: GroupOffsets, rewinds: GroupRewinds, chroot: str
    ) -> None:
        put(chroot, "/consumers/g/rewinds", b'{"generation":1}')
        put(
            chroot,
            "/consumers/g/rewinds/0000000001",
            b'{"positions":{"a":{"0":3}},"why":"w","when_us":5,"by":"ann"}',
        )
        assert rewinds.mark("g") == RewindMark(1)
        assert [each.mark for each in rewinds.history("g")] == [RewindMark(1)]
        offsets.commit("g", {A0: 5}, actor="q", expected_mark=RewindMark(1))
        assert rewinds.record("g", {A0: 1}, reason="w", actor="ann").mark.token

    def test_no_commit_slips_past_a_rewind(self, offsets: GroupOffsets, chroot: str) -> None:
        """The rewind's offset stays the last word for every commit that does not know of it, while
        a consumer commits as fast as it can."""
        began = threading.Event()

        def consume() -> int:
            with session(chroot, name="consumer") as other:
                mine = GroupOffsets(other)
                for offset in range(1_000_000):
                    try:
                        mine.commit(
                            "g", {A0: 1_000 + offset}, actor="q", expected_mark=RewindMark(0)
                        )
                    except GroupRewoundError:
                        return offset
                    if offset == 20:
                        began.set()
            return 0

        with ThreadPoolExecutor(1) as pool, session(chroot, name="operator") as operator:
            consumer = pool.submit(consume)
            began.wait(60)
            GroupRewinds(operator).record("g", {A0: 7}, reason="w", actor="ann")
            assert plain(offsets) == {A0: 7}
            assert consumer.result(60) > 20
        assert plain(offsets) == {A0: 7}

    def test_a_rewind_within_a_commit_refuses_it(
        self, offsets: GroupOffsets, rewinds: GroupRewinds, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The rewind refuses it also when it is of other partitions than the commit."""
        offsets.commit("g", {A0: 50, B0: 5}, actor="q")
        original = Nodes.transact

        def rewind_first(tree: Nodes, what: str, *rest: Any, **options: Any) -> None:
            monkeypatch.setattr(Nodes, "transact", original)
            rewinds.record("g", {A0: 10}, reason="w", actor="ann")
            original(tree, what, *rest, **options)

        monkeypatch.setattr(Nodes, "transact", rewind_first)
        with pytest.raises(GroupRewoundError):
            offsets.commit("g", {B0: 6, A1: 6}, actor="q", expected_mark=RewindMark(0))
        assert plain(offsets) == {A0: 10, B0: 5}

    def test_a_rewind_is_seen_whole_or_not_at_all(self, offsets: GroupOffsets, chroot: str) -> None:
        topic_partitions = [TopicPartition("t", p) for p in range(20)]
        offsets.commit("g", dict.fromkeys(topic_partitions, 0), actor="x")

        def rewind_often() -> None:
            with session(chroot, name="operator") as operator:
                for i in range(1, 40):
                    GroupRewinds(operator).record(
                        "g", dict.fromkeys(topic_partitions, i), reason="w", actor="x"
                    )

        with ThreadPoolExecutor(1) as pool:
            running = pool.submit(rewind_often)
            while not running.done():
                assert len(set(plain(offsets).values())) == 1
            running.result()
        assert set(plain(offsets).values()) == {39}

    def test_concurrent_rewinds_get_an_epoch_each(
        self, rewinds: GroupRewinds, offsets: GroupOffsets
    ) -> None:
        with ThreadPoolExecutor(4) as pool:
            made = list(
                pool.map(
                    lambda i: rewinds.record("g", {A0: i}, reason=str(i), actor="x"), range(12)
                )
            )
        assert sorted(rewind.epoch for rewind in made) == list(range(1, 13))
        history = rewinds.history("g")
        assert [rewind.epoch for rewind in history] == list(range(1, 13))
        assert plain(offsets) == {A0: history[-1].positions[A0]}

    def test_a_rewind_whose_reply_was_lost_is_done_once(
        self, zookeeper: EmbeddedZooKeeper, chroot: str, rewinds: GroupRewinds
    ) -> None:
        def meanwhile() -> None:
            rewinds.record("g", {A0: 1}, reason="another", actor="bob")

        with Proxy(zookeeper.address) as proxy, session(proxy.connect_string(chroot)) as unlucky:
            proxy.lose_reply(MULTI, before_cut=meanwhile)
            mine = GroupRewinds(unlucky).record("g", {A0: 2}, reason="mine", actor="ann")
            assert proxy.lost == 1
        assert mine.epoch == 1
        assert [r.reason for r in rewinds.history("g")] == ["mine", "another"]

    def test_only_the_last_rewinds_are_kept(
        self, rewinds: GroupRewinds, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("spark_logbus.coordination.groups.rewinds.MAX_HISTORY", 3)
        for i in range(5):
            rewinds.record("g", {A0: i}, reason="w", actor="x")
        assert [rewind.epoch for rewind in rewinds.history("g")] == [3, 4, 5]

    def test_bad_arguments(self, rewinds: GroupRewinds) -> None:
        with pytest.raises(InvalidRequestError, match="at least one partition"):
            rewinds.record("g", {}, reason="w", actor="x")
        with pytest.raises(InvalidRequestError, match="use 0 or more"):
            rewinds.record("g", {A0: -2}, reason="w", actor="x")

    def test_more_than_one_transaction_holds_is_refused(
        self, rewinds: GroupRewinds, offsets: GroupOffsets, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("spark_logbus.zookeeper.nodes.MAX_TRANSACTION_BYTES", 20_000)
        fitting = {TopicPartition("wide", p): p for p in range(50)}
        rewinds.record("g", fitting, reason="w", actor="x")
        with pytest.raises(InvalidRequestError, match=r"holds 20000 bytes.*smaller parts"):
            rewinds.record(
                "g", {TopicPartition("wide", p): 9 for p in range(200)}, reason="", actor=""
            )
        assert rewinds.epoch("g") == 1
        assert plain(offsets) == fitting
