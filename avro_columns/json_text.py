"""JSON of a stranger's, as far as limits let it be read.

Python's parser calls itself for each level of nesting, and its numbers have no bounds: the depth is
looked at first, without parsing, and what JSON does not have (NaN, lone surrogates) is refused.
"""

from __future__ import annotations

import json
import re
from typing import Any, Final, NoReturn

from avro_columns.errors import SchemaSyntaxError, SchemaTextTooLargeError

# Twice as long in a node of ZooKeeper at worst, where each quote and backslash is escaped: it still
# fits into one transaction, with what else changes at a registration.
MAX_SCHEMA_BYTES: Final = 400_000
# A record in a record is three levels, and Python's stack holds more than ten times as many.
MAX_JSON_DEPTH: Final = 240

_STRING_OR_BRACKET: Final = re.compile(r'"(?:[^"\\]|\\.)*"?|[\[\]{}]', re.DOTALL)


def parse_json(text: str) -> Any:
    """The value. Raises SchemaSyntaxError, and SchemaTextTooLargeError above MAX_SCHEMA_BYTES."""
    if not isinstance(text, str):
        raise SchemaSyntaxError(f"A schema is JSON as text, got {type(text).__name__}.")
    try:
        size = len(text.encode())
    except UnicodeEncodeError as error:
        raise SchemaSyntaxError("The text has half a character (a lone surrogate).") from error
    if size > MAX_SCHEMA_BYTES:
        raise SchemaTextTooLargeError(
            f"The schema has {size:,} bytes, and {MAX_SCHEMA_BYTES:,} at most are taken. Move "
            "types of their own to other subjects, and refer to them."
        )
    check_depth(text)
    try:
        value = json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise SchemaSyntaxError(f"This is no JSON ({error}).") from error
    check_characters(value)
    return value


def check_depth(text: str) -> None:
    """Raises SchemaSyntaxError for brackets in more than MAX_JSON_DEPTH others."""
    depth = 0
    for found in _STRING_OR_BRACKET.finditer(text):
        first = text[found.start()]
        if first in "[{":
            depth += 1
            if depth > MAX_JSON_DEPTH:
                raise SchemaSyntaxError(
                    f"The JSON is nested in more than {MAX_JSON_DEPTH} levels. Give inner records "
                    "names, and define them beside each other: in a union, or as references."
                )
        elif first in "]}":
            depth -= 1


def _refuse_constant(constant: str) -> NoReturn:
    raise ValueError(f"there is no {constant} in JSON")


def check_characters(value: Any, place: str = "") -> None:
    """An escape may have brought half a character, which no UTF-8 can hold. Raises
    SchemaSyntaxError."""
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        message = "The text has half a character (a lone surrogate)."
        raise SchemaSyntaxError(message, place) from error
