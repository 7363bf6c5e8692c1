"""Configuration: TOML tables into frozen dataclasses, checked when built.

A component declares a frozen dataclass; its field names are the keys, its annotations the types,
its ``__post_init__`` the bounds. Units stand in the names (``_bytes``, ``_ms``). A key that no
component knows is refused with the nearest one that exists.
"""

from __future__ import annotations

import dataclasses
import difflib
import enum
import types
import typing
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

from spark_logbus.errors import ConfigError

T = TypeVar("T")

#: Metadata of a field that no configuration file sets.
OF_TOPICS_ONLY: Final = types.MappingProxyType({"of_topics_only": True})


def load_toml(path: Path, known: Sequence[str] | None) -> dict[str, dict[str, Any]]:
    """The tables of a TOML file, which must be among ``known``; None: any.

    ConfigError names the file, and the line or the key.
    """
    import tomllib  # here: all processes of Spark import this module, and none of them reads a file

    try:
        tables = tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        raise ConfigError(
            f"Cannot read the configuration file {path}: {error.strerror}."
        ) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not valid TOML: {error}.") from error
    if known is not None:
        refuse_unknown(tables, known, where=str(path))
    for name, table in tables.items():
        require(isinstance(table, dict), f"{name!r} in {path} must be a table: [{name}].")
    return tables


def nearest(name: str, known: typing.Iterable[str], *, cutoff: float = 0.6) -> str | None:
    """Returns the one of ``known`` that ``name`` was probably meant to be, in whatever case."""
    by_lower = {each.lower(): each for each in known}
    close = difflib.get_close_matches(name.lower(), by_lower, n=1, cutoff=cutoff)
    return by_lower[close[0]] if close else None


# By the end of a key: in words, and an example as TOML has it.
_UNITS: Final = {
    "bytes": ("bytes", "1_048_576 for 1 MiB"),
    "ms": ("milliseconds", "60_000 for a minute"),
}

E = TypeVar("E", bound=enum.Enum)
# What Kafka's settings of the same name are called here.
_OF_KAFKA: Final = {"all": "replicated", "-1": "replicated", "1": "written", "0": "none"}


def choice(kind: type[E], given: object, *, key: str) -> E:
    """The member of ``kind`` that ``given`` is, or names in whatever case.

    ConfigError names the ones that there are, and the nearest.
    """
    if isinstance(given, kind):
        return given
    names = [member.name.lower() for member in kind]
    if isinstance(given, str) and given.lower() in names:
        return kind[given.upper()]
    *most, last = map(repr, names)
    meant = _OF_KAFKA.get(str(given))
    near = meant if meant in names else nearest(str(given), names)
    hint = f" Did you mean {near!r}?" if near else ""
    raise ConfigError(
        f"{key} is {given!r}; use {', '.join(most)} or {last}, or a value of {kind.__name__}.{hint}"
    )


def refuse_unknown(given: typing.Iterable[str], known: typing.Iterable[str], *, where: str) -> None:
    """Raise ConfigError for the first key that is not known, with the nearest one that is."""
    names = sorted(known)
    all_names = ", ".join(names) or "none"
    for key in given:
        if key not in names:
            near = nearest(key, names)
            hint = f"did you mean {near!r}?" if near else f"known are: {all_names}."
            raise ConfigError(f"Unknown key {key!r} in {where}; {hint}")


def build(kind: type[T], values: Mapping[str, Any], *, where: str) -> T:
    """A ``kind`` (a frozen dataclass) from ``values``; ``where`` names their origin in errors."""
    fields = {
        field.name: field
        for field in dataclasses.fields(kind)  # type: ignore[arg-type]
        if not field.metadata.get("of_topics_only")
    }
    refuse_unknown(values, fields, where=where)
    hints = typing.get_type_hints(kind)
    converted = {
        key: _convert(value, hints[key], key=key, where=where) for key, value in values.items()
    }
    missing = [
        name
        for name, field in fields.items()
        if name not in converted
        and field.default is dataclasses.MISSING
        and field.default_factory is dataclasses.MISSING
    ]
    if missing:
        raise ConfigError(f"{where} lacks the required key {missing[0]!r}.")
    try:
        return kind(**converted)
    except ConfigError as error:
        raise ConfigError(f"In {where}: {error.message}") from error


def _convert(value: Any, hint: Any, *, key: str, where: str) -> Any:
    if isinstance(hint, types.UnionType):
        options = [option for option in hint.__args__ if option is not types.NoneType]
        if value is None:
            return None
        hint = next((each for each in options if isinstance(value, each)), options[0])
    if typing.get_origin(hint) is list:
        if not isinstance(value, list):
            raise ConfigError(f"{key} in {where} must be a list, got {value!r}.")
        [of_each] = typing.get_args(hint)
        return [_convert(each, of_each, key=f"each of {key}", where=where) for each in value]
    if hint is Path and isinstance(value, str):
        return Path(value).expanduser()
    if issubclass(hint, enum.Enum) and not isinstance(value, hint):
        known = [member.value for member in hint]
        if value not in known:
            raise ConfigError(f"{key} in {where} is {value!r}; use {' or '.join(map(str, known))}.")
        return hint(value)
    if isinstance(value, hint) and not (hint is int and isinstance(value, bool)):
        return value
    wanted = _wanted(hint, key)
    raise ConfigError(f"{key} in {where} must be {wanted}, got {value!r}.")


def _wanted(hint: type, key: str) -> str:
    """A type in words; of a number with its unit, which is in the name of the key."""
    if hint is not int:
        return hint.__name__
    unit, example = _UNITS.get(key.rpartition("_")[2], ("", ""))
    return f"a whole number of {unit}, such as {example}" if unit else "a whole number"


def require(condition: bool, message: str) -> None:
    """Raise ConfigError with ``message`` unless ``condition``; for bounds in __post_init__."""
    if not condition:
        raise ConfigError(message)
