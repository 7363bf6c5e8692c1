from __future__ import annotations

import pytest

from spark_logbus.errors import ConfigError
from spark_logbus.log import LogConfig
from spark_logbus.topic_schemas import (
    PLAIN,
    Encoding,
    TopicSchemas,
    check_unchanged,
    with_subjects,
)

COLUMNS = {"value.encoding": "columns", "value.subject": "t-value"}


def test_encodings_and_subjects_come_from_a_topics_configuration() -> None:
    config = {**COLUMNS, "key.encoding": "avro", "key.subject": "ids", "retention.ms": "5000"}
    schemas = LogConfig.from_topic_config(config, LogConfig()).schemas
    assert schemas == TopicSchemas(
        value_encoding=Encoding.COLUMNS,
        value_subject="t-value",
        key_encoding=Encoding.AVRO,
        key_subject="ids",
    )
    assert schemas.subjects == {"value.subject": "t-value", "key.subject": "ids"}
    assert LogConfig.from_topic_config({}, LogConfig()).schemas is PLAIN


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"value.encoding": "json"}, "value.encoding to 'json'; use columns or avro"),
        ({"key.encoding": "json"}, "key.encoding to 'json'; use avro"),
        ({"key.encoding": "columns"}, "keys cannot be columns"),
        ({"value.subject": "s"}, "value.subject to 's' and no value.encoding"),
        ({"key.subject": "s"}, "key.subject to 's' and no key.encoding"),
        ({"value.encoding": "avro", "value.subject": "a/b"}, "value.subject: "),
        ({**COLUMNS, "cleanup.policy": "compact"}, "Use value.encoding avro, or cleanup.policy"),
        ({"value.encodin": "avro"}, "did you mean value.encoding"),
    ],
)
def test_what_no_topic_can_have_is_refused(config: dict[str, str], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        LogConfig.from_topic_config(config, LogConfig())


def test_columns_are_refused_where_brokers_compact_by_default() -> None:
    with pytest.raises(ConfigError, match="cannot be compacted"):
        LogConfig.from_topic_config(COLUMNS, LogConfig(cleanup_policy="compact"))
    LogConfig.from_topic_config(
        {"value.encoding": "avro", "cleanup.policy": "compact"}, LogConfig()
    )


def test_subjects_are_written_out_by_default() -> None:
    assert with_subjects("t", {"value.encoding": "avro", "key.encoding": "avro"}) == {
        "value.encoding": "avro",
        "value.subject": "t-value",
        "key.encoding": "avro",
        "key.subject": "t-key",
    }
    assert with_subjects("t", {"value.encoding": "avro", "value.subject": "s"}) == {
        "value.encoding": "avro",
        "value.subject": "s",
    }
    assert with_subjects("t", {"retention.ms": "1"}) == {"retention.ms": "1"}


@pytest.mark.parametrize(
    "after",
    [
        {},
        {"value.encoding": "avro", "value.subject": "t-value"},
        {**COLUMNS, "key.encoding": "avro"},
    ],
)
def test_an_alteration_cannot_change_how_records_are_encoded(after: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match="create another topic"):
        check_unchanged("t", COLUMNS, after)
    check_unchanged("t", COLUMNS, {**COLUMNS, "retention.ms": "1"})
