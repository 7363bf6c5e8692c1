from __future__ import annotations

from typing import Any

import pytest

from avro_columns.compatibility import Compatibility
from spark_logbus.schemas.errors import (
    InvalidModeError,
    InvalidSchemaError,
    InvalidVersionError,
    NotPermittedError,
)
from spark_logbus.schemas.registry.cache import SchemaCache
from spark_logbus.schemas.registry.subjects import (
    LATEST,
    MAX_VERSION,
    MAX_VERSIONS,
    Content,
    Mode,
    Reference,
    Subject,
    SubjectVersion,
    added,
    mode_in_force,
    next_version,
    parse_version,
    soft_deleted,
    to_soft_delete,
)


@pytest.mark.parametrize(
    ("text", "version"),
    [("1", 1), (1, 1), ("2147483647", 2**31 - 1), ("latest", LATEST), ("-1", LATEST), (-1, LATEST)],
)
def test_versions_as_people_write_them(text: Any, version: int) -> None:
    assert parse_version(text) == version


@pytest.mark.parametrize(
    "text", ["0", 0, "2147483648", "-2", "", "one", "1.0", 1.5, True, None, "٣", "9" * 5000]
)
def test_what_is_no_version(text: Any) -> None:
    with pytest.raises(InvalidVersionError, match="from 1 to 2147483647, or 'latest'"):
        parse_version(text)


def test_modes_by_name() -> None:
    assert Mode.named("readonly") is Mode.READONLY
    with pytest.raises(InvalidModeError, match="'OFF'; there are READWRITE, READONLY, READ"):
        Mode.named("OFF")


@pytest.mark.parametrize(
    ("own", "of_all", "in_force"),
    [
        (None, None, Mode.READWRITE),
        (None, Mode.IMPORT, Mode.IMPORT),
        (Mode.READWRITE, Mode.READONLY, Mode.READWRITE),
        (Mode.IMPORT, Mode.READONLY_OVERRIDE, Mode.READONLY_OVERRIDE),
    ],
)
def test_a_subjects_own_mode_comes_first_unless_it_is_overridden(
    own: Mode | None, of_all: Mode | None, in_force: Mode
) -> None:
    assert mode_in_force(own, of_all) is in_force


def test_the_compatibility_goes_with_the_last_version_that_is_seen() -> None:
    subject = Subject(
        "a", (SubjectVersion(1, 5), SubjectVersion(2, 6)), Compatibility.FULL, Mode.READWRITE
    )
    one = soft_deleted(subject, to_soft_delete(subject, 1))
    assert (one.compatibility, one.mode) == (Compatibility.FULL, Mode.READWRITE)
    none = soft_deleted(one, to_soft_delete(one, LATEST))
    assert (none.live, none.compatibility, none.mode) == ([], None, Mode.READWRITE)


def test_a_version_is_never_given_twice_and_there_is_a_limit() -> None:
    subject = Subject("a", (SubjectVersion(1, 5), SubjectVersion(4, 6, deleted=True)))
    assert next_version(subject) == 5
    assert [each.version for each in added(subject, SubjectVersion(2, 9)).versions] == [1, 2, 4]
    with pytest.raises(NotPermittedError, match="version 4 already"):
        added(subject, SubjectVersion(4, 9))
    last = Subject("a", (SubjectVersion(MAX_VERSION, 1),))
    with pytest.raises(InvalidVersionError, match=f"beyond the last .* {MAX_VERSION}"):
        added(last, SubjectVersion(next_version(last), 9))
    full = Subject("a", tuple(SubjectVersion(n, n) for n in range(1, MAX_VERSIONS + 1)))
    with pytest.raises(InvalidSchemaError, match=f"{MAX_VERSIONS} at most"):
        added(full, SubjectVersion(next_version(full), 9))
    assert added(full, SubjectVersion(9_999, 9), without=[1]).versions[0].version == 2


def test_contents_differ_by_text_and_by_references() -> None:
    contents = [
        Content('"int"'),
        Content('"long"'),
        Content('"int"', (Reference("a", "b", 1),)),
        Content('"int"', (Reference("a", "b", 2),)),
        Content('"int"', (Reference("a", "b", 1), Reference("a", "b", 2))),
    ]
    assert len({each.digest for each in contents}) == len(contents)
    assert Content('"int"').digest == Content('"int"', ()).digest


def test_the_cache_keeps_what_was_used_last() -> None:
    cache = SchemaCache(max_bytes=100)
    for number in range(10):
        cache.put(number, Content("x" * 30))
        assert cache.get(0) is not None
    assert [number for number in range(10) if cache.get(number)] == [0, 8, 9]
    cache.put(1, Content("x" * 1_000))
    assert [number for number in range(10) if cache.get(number)] == [1]
    cache.drop(1)
    cache.drop(1)
    assert cache.get(1) is None
