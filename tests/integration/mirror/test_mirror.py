"""Mirrors between two real clusters: the copy equals the topic, record by record."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from spark_logbus.client import Admin, Consumer, ConsumerConfig, Producer
from spark_logbus.coordination.groups.offsets import GroupOffsets
from spark_logbus.coordination.mirrors import Mirrors
from spark_logbus.errors import (
    CoordinationError,
    DataLossError,
    GroupHeldError,
    InvalidRequestError,
    LockHeldError,
    TopicRecreatedError,
)
from spark_logbus.local.zookeeper import EmbeddedZooKeeper
from spark_logbus.mirror import Mirror, MirrorConfig, forget_topic, source_at, translate_group
from spark_logbus.model import Compression, TopicPartition
from spark_logbus.selection import Pattern, Topics
from spark_logbus.zookeeper import Session, SessionState
from tests.helpers import wait_until
from tests.integration.mirror.mirrored import (
    Pair,
    assert_equal,
    copy_all,
    payloads,
    records,
    spans,
    two_clusters,
)
from tests.servers.zookeeper import MULTI, Proxy, expire, session


@pytest.fixture(scope="module")
def pair(zookeeper: EmbeddedZooKeeper, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    with two_clusters(zookeeper.address, tmp_path_factory.mktemp("clusters")) as clusters:
        yield clusters


def produce_in_segments(pair: Pair, topic: str) -> None:
    """2,000 records; an append is never cut over segments, so they come in several."""
    for _ in range(10):
        pair.produce(topic, 200)


# -- what is copied -----------------------------------------------------------------------


@pytest.mark.parametrize("compression", [Compression.NONE, Compression.ZSTD])
def test_record_batches_pass_as_they_are(pair: Pair, compression: Compression) -> None:
    topic = pair.topic(partitions=3)
    pair.produce(topic, 1_000, compression=compression)
    pair.produce(topic, 50, keys=0)
    with pair.mirror(topic) as mirror:
        [report] = copy_all(mirror)
        assert report.records == 1_050
        assert {lag.records for lag in mirror.lags()} == {0}
    assert_equal(pair, topic)
    assert payloads(pair.target, topic) == payloads(pair.source, topic)


def test_what_comes_later_is_copied_once(pair: Pair) -> None:
    topic = pair.topic()
    for _ in range(3):
        pair.produce(topic, 500)
        with pair.mirror(topic, round_bytes=8_000) as mirror:
            assert len(copy_all(mirror)) > 1
            pair.produce(topic, 100)
            copy_all(mirror)
            assert mirror.copy_round() is None
    assert assert_equal(pair, topic) == 1_800


def test_many_topics_by_a_pattern_under_other_names(pair: Pair) -> None:
    first, second = pair.topic(partitions=1), pair.topic(partitions=2, segment_bytes="20000")
    pattern = Pattern(f"({first}|{second}|later-{first})")
    with pair.mirror(pattern, name=f"many-{first}", rename="replica.{topic}") as mirror:
        pair.produce(first, 100)
        copy_all(mirror)
        Admin(pair.source).create_topic(f"later-{first}", partitions=1)
        pair.produce(f"later-{first}", 10)
        pair.produce(second, 100)
        copy_all(mirror)
    for topic in (first, second, f"later-{first}"):
        assert assert_equal(pair, topic, f"replica.{topic}")
    described = Admin(pair.target).describe([f"replica.{second}"])[f"replica.{second}"]
    assert described.config["segment.bytes"] == "20000"


def test_partitions_that_are_added_are_copied(pair: Pair, caplog: pytest.LogCaptureFixture) -> None:
    topic = pair.topic(partitions=1)
    pair.produce(topic, 50)
    with pair.mirror(topic) as mirror:
        copy_all(mirror)
        Admin(pair.source).alter_topic(topic, partitions=3, put={"retention.ms": "86400000"})
        pair.produce(topic, 100)
        copy_all(mirror)
    assert assert_equal(pair, topic) == 150
    assert "retention.ms is 86400000 in the source and -1 in the target" in caplog.text
    assert Admin(pair.target).describe([topic])[topic].config["retention.ms"] == "-1"


def test_a_compacted_topic_is_copied_with_its_gaps_closed(pair: Pair) -> None:
    topic = pair.topic(
        partitions=1, cleanup_policy="compact", segment_bytes="20000",
        min_cleanable_dirty_ratio="0.01",
    )  # fmt: skip
    history = pair.source_broker.directory / "data" / f"{topic}-0" / "compaction"
    produce_in_segments(pair, topic)
    at = TopicPartition(topic, 0)
    with pair.mirror(topic, round_bytes=30_000) as mirror:
        assert mirror.plan_round()  # for which the copy is made
        Admin(pair.target).alter_topic(topic, put={"cleanup.policy": "delete"})
        mirror.copy_round()  # up to the middle of what compaction joins
        produce_in_segments(pair, topic)
        wait_until(history.exists, message="a compaction")
        wait_until(lambda: len(records(pair.source, topic)) < 1_000, message="a shorter log")
        copied = records(pair.target, topic)
        copy_all(mirror)
    kept = {record.key: record for record in records(pair.source, topic)}
    found = records(pair.target, topic)
    assert found[: len(copied)] == copied
    assert {record.key: record for record in found} == kept
    with Session(pair.target_zookeeper, client_name="test") as session:
        points = Mirrors(session).read(f"mirror-{topic}").topics[topic].points[0]
    assert points[-1].source == spans(pair.source, topic)[at][1] == 4_000
    assert points[-1].target == spans(pair.target, topic)[at][1] < 4_000


# -- what is lost, or is another topic ----------------------------------------------------


def delete_the_first(pair: Pair, topic: str) -> int:
    """Have retention delete what is not in the last segments; where the log begins then."""
    Admin(pair.source).alter_topic(topic, put={"retention.bytes": "20000"})
    at = TopicPartition(topic, 0)
    return wait_until(lambda: spans(pair.source, topic)[at][0], message="retention")


def test_records_deleted_before_they_are_copied_are_told(pair: Pair) -> None:
    topic = pair.topic(partitions=1, segment_bytes="16384")
    pair.produce(topic, 100)
    with pair.mirror(topic) as mirror:
        copy_all(mirror)
        produce_in_segments(pair, topic)
        start = delete_the_first(pair, topic)
        with pytest.raises(DataLossError, match=rf"has lost {topic}-0\[100, \d+\).*--allow-gaps"):
            mirror.copy_round()
    with pair.mirror(topic, allow_gaps=True) as mirror:
        reports = copy_all(mirror)
    assert [lost.start for lost in reports[0].lost] == [100]
    left = records(pair.source, topic)
    assert len(left) <= 2_100 - start
    assert records(pair.target, topic)[100:] == left


def test_a_round_whose_records_went_before_it_was_done_is_planned_anew(pair: Pair) -> None:
    topic = pair.topic(partitions=1, segment_bytes="16384")
    produce_in_segments(pair, topic)
    with pair.mirror(topic, round_bytes=10_000) as mirror:
        assert mirror.plan_round()
    delete_the_first(pair, topic)
    with pair.mirror(topic) as mirror, pytest.raises(DataLossError, match=r"has lost .*\[0, \d+\)"):
        copy_all(mirror)
    with pair.mirror(topic, allow_gaps=True) as mirror:
        copy_all(mirror)
    assert assert_equal(pair, topic) < 2_000


def test_a_state_that_is_not_the_last_one_is_refused(pair: Pair) -> None:
    """A state of a backup does not know what was copied since."""
    topic = pair.topic(partitions=1)
    pair.produce(topic, 50)
    with pair.mirror(topic) as mirror:
        copy_all(mirror)
        pair.produce(topic, 50)
        first = mirror._state
        copy_all(mirror)
        mirror._mirrors.write(mirror.config.name, mirror._state, first)
    with pair.mirror(topic) as mirror, pytest.raises(DataLossError, match="is of a backup"):
        mirror.copy_round()
    assert assert_equal(pair, topic) == 100


def test_a_topic_that_was_created_again_is_not_mixed_with_the_first(pair: Pair) -> None:
    topic = pair.topic()
    pair.produce(topic, 50)
    with pair.mirror(topic) as mirror:
        copy_all(mirror)
        before = records(pair.target, topic)
        pair.produce(topic, 50)
        assert mirror.plan_round()
        Admin(pair.source).delete_topic(topic)
        Admin(pair.source).create_topic(topic, partitions=2)
        pair.produce(topic, 20)
        with pytest.raises(TopicRecreatedError):
            mirror.copy_round()
    with pair.mirror(topic) as mirror, pytest.raises(TopicRecreatedError, match="mirror forget"):
        copy_all(mirror)  # closes the round that stood first
    assert records(pair.target, topic) == before
    with Session(pair.target_zookeeper, client_name="test") as session:
        with pytest.raises(InvalidRequestError, match="its topics are: " + topic):
            forget_topic(f"mirror-{topic}", "another", session=session)
        forget_topic(f"mirror-{topic}", topic, session=session)
    with pair.mirror(topic) as mirror, pytest.raises(InvalidRequestError, match="has not copied"):
        mirror.copy_round()
    Admin(pair.target).delete_topic(topic)
    with pair.mirror(topic) as mirror:
        copy_all(mirror)
    assert assert_equal(pair, topic) == 20


def test_a_copy_that_was_deleted_is_not_made_again_unasked(pair: Pair) -> None:
    topic = pair.topic()
    pair.produce(topic, 50)
    with pair.mirror(topic) as mirror:
        copy_all(mirror)
        Admin(pair.target).delete_topic(topic)
        with pytest.raises(TopicRecreatedError, match="was deleted in the target"):
            mirror.copy_round()


# -- who copies ---------------------------------------------------------------------------


def test_the_second_mirror_of_a_name_is_told_who_runs_it(pair: Pair) -> None:
    topic = pair.topic()
    with pair.mirror(topic), pytest.raises(LockHeldError, match=r"locked by a mirror of .*process"):
        pair.mirror(topic).__enter__()


def test_a_mirror_goes_on_after_its_session_expired(pair: Pair) -> None:
    topic = pair.topic()
    pair.produce(topic, 50)
    with pair.mirror(topic) as mirror:
        copy_all(mirror)
        pair.produce(topic, 50)
        expire(mirror._lock._session)
        copy_all(mirror)
        with pytest.raises(LockHeldError):
            pair.mirror(topic).__enter__()
    assert assert_equal(pair, topic) == 100


@pytest.mark.parametrize("step", ["plan", "note"])
def test_a_write_of_which_nothing_is_known_is_looked_up(
    pair: Pair, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The round was carried out, and ZooKeeper went before it said so, for longer than the mirror
    waits: that is no other process at the same mirror."""
    topic = pair.topic()
    config = MirrorConfig(name=f"mirror-{topic}", topics=Topics((topic,)))
    with (
        Proxy(pair.target_zookeeper.partition("/")[0]) as proxy,
        session(proxy.connect_string(pair.target_zookeeper)) as through_proxy,
        source_at(zookeeper=pair.source_zookeeper) as source,
        Mirror(config, source=source, target=pair.target, session=through_proxy) as mirror,
    ):
        pair.produce(topic, 50)
        copy_all(mirror)
        pair.produce(topic, 50)
        if step == "note":
            assert mirror.plan_round()
            staged = mirror.stage_round()
            commit = mirror.commit_round(staged)
        proxy.lose_reply(MULTI, before_cut=proxy.refuse.set)
        with monkeypatch.context() as patched:
            patched.setattr(through_proxy, "_operation_timeout_ms", 3_000)
            with pytest.raises(CoordinationError, match="not possible to write the state"):
                mirror.plan_round() if step == "plan" else mirror.note_round(commit, staged)
        assert proxy.lost == 1
        proxy.refuse.clear()
        wait_until(lambda: through_proxy.state is SessionState.CONNECTED)
        copy_all(mirror)
    assert assert_equal(pair, topic) == 100


def test_who_lost_the_mirror_to_another_writes_nothing(pair: Pair) -> None:
    topic = pair.topic()
    pair.produce(topic, 50)
    with pair.mirror(topic) as slow:
        assert slow.plan_round()
        staged = slow.stage_round()
        slow._lock.release()
        with pair.mirror(topic) as quick:
            copy_all(quick)
            pair.produce(topic, 50)
            copy_all(quick)
            with pytest.raises(CoordinationError, match="was staged and is not committed"):
                slow.commit_round(staged)
            commit = slow._commit(staged.write, [staged.task])
            assert not commit.committed
            assert commit.version == 2
            with pytest.raises(DataLossError, match=r"committed another round 2, .*is at round 1"):
                slow.note_round(commit, staged)
        pair.produce(topic, 50)
        copy_all(slow)  # which has the lock again
    assert assert_equal(pair, topic) == 150


# -- groups -------------------------------------------------------------------------------


def commit(zookeeper: str, group: str, offsets: dict[TopicPartition, int]) -> None:
    with Session(zookeeper, client_name="test") as session:
        GroupOffsets(session).commit(group, offsets, actor="test")


def test_a_group_goes_on_in_the_copy_where_it_was(pair: Pair) -> None:
    """Translates where others have written into the copy, too: nothing of the topic is passed
    over."""
    topic = pair.topic(partitions=1)
    at, group = TopicPartition(topic, 0), f"group-{topic}"
    pair.produce(topic, 100)
    with pair.mirror(topic) as mirror:
        copy_all(mirror)
        with Producer(pair.target) as producer:
            producer.send(topic, b"not of the source", partition=0)
        pair.produce(topic, 100)
        copy_all(mirror)
        pair.produce(topic, 7)
    of_source = [each.value for each in records(pair.source, topic)]
    copy = [each.value for each in records(pair.target, topic)]
    with (
        Session(pair.target_zookeeper, client_name="test") as session,
        source_at(zookeeper=pair.source_zookeeper) as source,
    ):
        groups, name = GroupOffsets(session), f"mirror-{topic}"
        with pytest.raises(InvalidRequestError, match="has committed nothing"):
            translate_group(name, group, source=source, session=session)
        for offset in (0, 50, 100, 101, 150, 200, 203):
            commit(pair.source_zookeeper, group, {at: offset})
            [row] = translate_group(name, group, source=source, session=session)
            assert groups.committed(group) == {}
            left = [value for value in copy[row.new :] if value != b"not of the source"]
            assert left == of_source[offset:200]
            assert row.ahead == max(0, offset - 200)
        [row] = translate_group(name, group, source=source, session=session, execute=True)
        entry = groups.committed(group)[at]
        assert (entry.offset, entry.actor) == (201, f"mirror {name}")
        with Consumer(pair.target, ConsumerConfig(group=group)) as consumer:
            consumer.subscribe(topic)
            wait_until(lambda: consumer.poll(0.1) is not None and consumer.assignment)
            with pytest.raises(GroupHeldError):
                translate_group(name, group, source=source, session=session, execute=True)


def test_a_round_of_a_process_that_died_keeps_groups_exact(pair: Pair) -> None:
    """The round was committed, and who notes it does not know what was read."""
    topic = pair.topic(partitions=1)
    at, group = TopicPartition(topic, 0), f"group-{topic}"
    pair.produce(topic, 300)
    with pair.mirror(topic) as mirror:
        assert mirror.plan_round()
        mirror.commit_round(mirror.stage_round())
    with pair.mirror(topic) as mirror:
        [report] = copy_all(mirror)
        assert report.records is None
    assert assert_equal(pair, topic) == 300
    commit(pair.source_zookeeper, group, {at: 123})
    with (
        Session(pair.target_zookeeper, client_name="test") as session,
        source_at(zookeeper=pair.source_zookeeper) as source,
    ):
        [row] = translate_group(f"mirror-{topic}", group, source=source, session=session)
    assert (row.new, row.exact) == (123, True)


def test_the_end_of_a_round_is_noted_again_where_that_was_cut_short(pair: Pair) -> None:
    """State of many topics, whose nodes do not fit into one transaction."""
    first, second = pair.topic(partitions=1), pair.topic(partitions=1)
    for topic in (first, second):
        pair.produce(topic, 50)
    topics = Topics((first, second))
    with pair.mirror(topics, name="cut") as mirror:
        assert mirror.plan_round()
        before = mirror._state
        staged = mirror.stage_round()
        mirror.note_round(mirror.commit_round(staged), staged)
        after = mirror._state
        half = replace(before, topics={**before.topics, first: after.topics[first]})
        mirror._mirrors.write("cut", after, half)
    with pair.mirror(topics, name="cut") as mirror:
        copy_all(mirror)
        assert mirror._state == after
    for topic in (first, second):
        assert assert_equal(pair, topic) == 50


def test_an_unknown_mirror_is_told_of_those_there_are(pair: Pair) -> None:
    with (
        Session(pair.target_zookeeper, client_name="test") as session,
        source_at(zookeeper=pair.source_zookeeper) as source,
        pytest.raises(InvalidRequestError, match="has no mirror 'nobody'; it has: "),
    ):
        translate_group("nobody", "g", source=source, session=session)


def test_names_are_checked_before_anything_is_done(pair: Pair) -> None:
    topic = pair.topic()
    names = Topics((topic,))
    with pytest.raises(InvalidRequestError, match=r"write \{topic\} in it"):
        pair.mirror(names, name="m", rename="replica").__enter__()
