"""TOML into checked configuration: every complaint names the file, the table and the key."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from spark_logbus.config import build, load_toml, refuse_unknown, require
from spark_logbus.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Sample:
    size_bytes: int
    name: str = "sample"
    place: Path = Path()
    limit_ms: int | None = 5
    fast: bool = False

    def __post_init__(self) -> None:
        require(self.size_bytes > 0, f"size_bytes must be above 0, got {self.size_bytes}.")


def test_values_are_taken_and_defaults_kept() -> None:
    sample = build(Sample, {"size_bytes": 7, "place": "~/x", "fast": True}, where="[sample]")
    assert sample == Sample(7, place=Path.home() / "x", fast=True)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({}, "lacks the required key 'size_bytes'"),
        ({"size_bytes": "7"}, "size_bytes .* must be a whole number of bytes, .* got '7'"),
        ({"size_bytes": 7.5}, "size_bytes .* must be a whole number of bytes, .* got 7.5"),
        ({"size_bytes": True}, "size_bytes .* must be a whole number of bytes, .* got True"),
        ({"size_bytes": None}, "size_bytes .* must be a whole number of bytes, .* got None"),
        ({"size_bytes": 0}, "size_bytes must be above 0, got 0"),
        ({"size_bytes": 1, "name": 5}, "name .* must be str, got 5"),
        ({"size_bytes": 1, "place": 5}, "place .* must be Path, got 5"),
        (
            {"size_bytes": 1, "limit_ms": "5"},
            "limit_ms .* must be a whole number of milliseconds, .* got '5'",
        ),
        ({"size_bytes": 1, "fast": 1}, "fast .* must be bool, got 1"),
        ({"size_byte": 1}, "Unknown key 'size_byte' .* did you mean 'size_bytes'"),
        ({"zzz": 1}, "Unknown key 'zzz' .* known are: fast, limit_ms, name, place, size_bytes"),
    ],
)
def test_each_bad_value_is_named(values: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        build(Sample, values, where="[sample] of x.toml")
    assert "[sample] of x.toml" in caught.value.message


def test_an_optional_value_may_be_none() -> None:
    assert build(Sample, {"size_bytes": 1, "limit_ms": None}, where="").limit_ms is None


def test_known_tables_are_loaded(tmp_path: Path) -> None:
    path = tmp_path / "a.toml"
    path.write_text('[one]\nkey = "ä"\n[two]\n', "utf-8")
    assert load_toml(path, ("one", "two", "three")) == {"one": {"key": "ä"}, "two": {}}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"[one]\nx = 1 2", "not valid TOML.*line 2"),
        (b"[one]\nx = 1\nx = 2", "not valid TOML"),
        (b"[one]\nx = '\xff'", "not valid TOML"),
        (b"[ones]", "Unknown key 'ones'.*did you mean 'one'"),
        (b"one = 5", "'one' in .* must be a table"),
        (b"[[one]]", "'one' in .* must be a table"),
    ],
)
def test_what_is_wrong_with_a_file_is_said(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "a.toml"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=message) as caught:
        load_toml(path, ("one",))
    assert str(path) in caught.value.message


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "missing.toml"):
        with pytest.raises(ConfigError, match=str(path)):
            load_toml(path, ())


def test_unknown_names_without_a_near_one() -> None:
    refuse_unknown(["a"], ["a", "b"], where="x")
    with pytest.raises(ConfigError, match="'q' in x; known are: a, b"):
        refuse_unknown(["a", "q"], ["b", "a"], where="x")


@dataclass(frozen=True)
class Listing:
    names: list[str]


def test_each_element_of_a_list_is_checked() -> None:
    assert build(Listing, {"names": ["a", "b"]}, where="[x]") == Listing(["a", "b"])
    with pytest.raises(ConfigError, match=r"names in \[x\] must be a list, got 'a'"):
        build(Listing, {"names": "a"}, where="[x]")
    with pytest.raises(ConfigError, match=r"each of names in \[x\] must be str, got 5"):
        build(Listing, {"names": ["a", 5]}, where="[x]")
