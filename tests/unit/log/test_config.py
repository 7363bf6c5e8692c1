from __future__ import annotations

import pytest

from spark_logbus.errors import ConfigError
from spark_logbus.log import LogConfig
from spark_logbus.log.config import FlushPolicy

DEFAULTS = LogConfig()


def test_topic_keys_override_defaults() -> None:
    config = LogConfig.from_topic_config(
        {
            "segment.bytes": "1048576",
            "segment.ms": "1000",
            "retention.ms": "5000",
            "retention.bytes": "7000",
            "max.message.bytes": "9000",
            "flush.messages": "10",
            "flush.ms": "11",
            "index.interval.bytes": "512",
        },
        DEFAULTS,
    )
    assert config == LogConfig(
        segment_bytes=1048576,
        segment_ms=1000,
        retention_ms=5000,
        retention_bytes=7000,
        max_record_batch_bytes=9000,
        flush_records=10,
        flush_ms=11,
        index_interval_bytes=512,
    )


@pytest.mark.parametrize("none", ["-1", "9223372036854775807"])
@pytest.mark.parametrize(
    ("key", "field"),
    [
        ("retention.ms", "retention_ms"),
        ("retention.bytes", "retention_bytes"),
        ("flush.messages", "flush_records"),
        ("flush.ms", "flush_ms"),
    ],
)
def test_minus_one_and_kafka_s_largest_number_mean_none(key: str, field: str, none: str) -> None:
    defaults = LogConfig(retention_bytes=1, flush_records=1, flush_ms=1)
    assert getattr(LogConfig.from_topic_config({key: none}, defaults), field) is None


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("segment.bytes", "-1", "segment.bytes to '-1'"),
        ("segment.bytes", "1GB", "whole number of at least 1024"),
        ("retention.ms", "-2", "or -1 for none"),
        ("flush.messages", "0", "at least 1"),
        ("max.message.bytes", "", "whole number"),
        ("retention.mss", "1", "did you mean retention.ms?"),
        ("colour", "1", "has no key 'colour'"),
        ("flush.ms", "9223372036854775808", "is the largest number and means none"),
        ("segment.bytes", "9223372036854775808", "9223372036854775807 is the largest number."),
        ("cleanup.policy", "compakt", "cleanup.policy is 'compakt'; did you mean compact?"),
    ],
)
def test_errors_name_key_value_and_remedy(key: str, value: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        LogConfig.from_topic_config({key: value}, DEFAULTS)
    assert said in str(caught.value)


def test_a_config_is_checked_when_it_is_built() -> None:
    with pytest.raises(ConfigError, match="segment_bytes"):
        LogConfig(segment_bytes=0)
    with pytest.raises(ConfigError, match=r"flush_ms .* fits 64 bits"):
        LogConfig(flush_ms=1 << 63)


def test_group_commit_is_the_default() -> None:
    assert DEFAULTS.flushes_at_once
    assert not LogConfig(flush_ms=5).flushes_at_once
    assert not LogConfig(flush_records=5).flushes_at_once


def test_the_flush_policy_of_a_topic() -> None:
    config = LogConfig.from_topic_config({"flush.policy": "os"}, DEFAULTS)
    assert config.flush_policy is FlushPolicy.OS
    with pytest.raises(ConfigError, match="'never'; use logbus or os"):
        LogConfig.from_topic_config({"flush.policy": "never"}, DEFAULTS)
    with pytest.raises(ConfigError, match=r"flush\.messages and flush\.ms"):
        LogConfig.from_topic_config({"flush.policy": "os", "flush.ms": "10"}, DEFAULTS)


@pytest.mark.parametrize(
    ("key", "text", "hint"),
    [
        ("retention.ms", "7d", " 7d is 604800000 ms."),
        ("segment.ms", "90 minutes", " 90 minutes is 5400000 ms."),
        ("segment.bytes", "7d", "."),
        ("retention.ms", "soon", "."),
    ],
)
def test_a_duration_for_a_number_is_refused(key: str, text: str, hint: str) -> None:
    with pytest.raises(ConfigError) as refused:
        LogConfig.from_topic_config({key: text}, DEFAULTS)
    told = str(refused.value)
    assert told.startswith(f"The topic configuration sets {key} to {text!r}; set it to a whole")
    assert told.endswith(hint)
    assert told.endswith("ms.") == hint.endswith("ms.")
