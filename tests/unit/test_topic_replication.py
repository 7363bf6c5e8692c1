"""Settings of replicas, by their names in a topic's configuration."""

from __future__ import annotations

import pytest

from spark_logbus.errors import ConfigError
from spark_logbus.log import LogConfig
from spark_logbus.topic_replication import REPLICATION_KEYS, TopicReplication


def test_the_default_depends_on_the_number_of_replicas() -> None:
    default = TopicReplication.from_topic_config({"retention.ms": "5"})
    assert not default.unclean_election
    assert [default.least_in_sync(replicas) for replicas in (1, 2, 3, 5)] == [1, 1, 2, 2]
    for replicas in range(1, 6):
        default.check("t", replicas)


def test_what_a_topic_says_holds() -> None:
    own = TopicReplication.from_topic_config(
        {"min.insync.replicas": "3", "unclean.leader.election": "True"}
    )
    assert own == TopicReplication(min_in_sync=3, unclean_election=True)
    assert own.least_in_sync(5) == own.least_in_sync(1) == 3
    own.check("t", 3)
    with pytest.raises(ConfigError, match=r"of the topic 't' is 3, .* has 2 replicas: .* 1 to 2"):
        own.check("t", 2)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *(("min.insync.replicas", value) for value in
          ("0", "-1", "17", "9" * 5_000, "two", "", " 2", "2.0", "\u0662", "+2", "1_0")),
        *(("unclean.leader.election", value) for value in ("yes", "", "1", "falsch", "true ")),
    ],
)  # fmt: skip
def test_what_no_topic_can_have(key: str, value: str) -> None:
    with pytest.raises(ConfigError, match=f"sets {key} to"):
        TopicReplication.from_topic_config({key: value})


def test_logs_pass_over_them_and_a_misspelt_one_is_named() -> None:
    config = {"min.insync.replicas": "2", "unclean.leader.election": "false"}
    assert {*config} == {*REPLICATION_KEYS}
    assert LogConfig.from_topic_config(config, LogConfig()) == LogConfig()
    for key, meant in (
        ("min.in.sync.replicas", "min.insync.replicas"),
        ("unclean.leader.election.enable", "unclean.leader.election"),
    ):
        with pytest.raises(ConfigError, match=f"did you mean {meant}"):
            LogConfig.from_topic_config({key: "2"}, LogConfig())
