"""Sizes and durations in a topic's configuration, as people write them."""

from __future__ import annotations

import pytest

from spark_logbus.cli.admin.quantities import in_units, parse_size, topic_config
from spark_logbus.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("1024", 1024),
        ("64K", 65_536),
        ("1GiB", 1 << 30),
        ("500 MB", 500_000_000),
        ("2tib", 2 << 40),
    ],
)
def test_sizes(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "GiB", "1.5GiB", "-1", "1 fathom"])
def test_sizes_that_are_none(text: str) -> None:
    with pytest.raises(ValueError, match="64KiB"):
        parse_size(text)


@pytest.mark.parametrize(
    ("pair", "value"),
    [
        ("retention.ms=7d", "604800000"),
        ("retention.ms=12h", "43200000"),
        ("flush.ms=90s", "90000"),
        ("flush.ms=500ms", "500"),
        ("segment.bytes=1GiB", "1073741824"),
        ("retention.ms=604800000", "604800000"),
        ("retention.bytes=-1", "-1"),
        ("retention.ms=soon", "soon"),  # for the broker to refuse
        ("flush.messages=7d", "7d"),
        ("cleanup.policy = compact", "compact"),
    ],
)
def test_values_are_counted_in_their_keys_units(pair: str, value: str) -> None:
    assert list(topic_config([pair], option="--config").values()) == [value]


def test_what_is_no_pair_is_refused() -> None:
    with pytest.raises(ConfigError, match="--set takes key=value"):
        topic_config(["retention.ms"], option="--set")


@pytest.mark.parametrize(
    ("key", "value", "shown"),
    [
        ("retention.ms", "604800000", "7d"),
        ("segment.bytes", "1073741824", "1GiB"),
        ("retention.ms", "-1", "none"),
        ("retention.ms", "1", None),
        ("flush.messages", "1024", None),
    ],
)
def test_values_are_shown_as_they_can_be_given(key: str, value: str, shown: str | None) -> None:
    assert in_units(key, value) == shown
    if shown not in (None, "none"):
        assert topic_config([f"{key}={shown}"], option="--config") == {key: value}
