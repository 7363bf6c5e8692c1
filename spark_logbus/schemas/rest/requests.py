"""What is asked of the REST service: parameters and bodies, with their bounds.

Of Confluent's contexts, which are registries within a registry, there is the default one: its name,
``:.:``, may stand before that of a subject, and in its place for all subjects.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeVar

from spark_logbus.http import HttpError, Request
from spark_logbus.schemas.errors import InvalidSchemaError, UnknownSchemaError
from spark_logbus.schemas.registry.subjects import Reference, parse_version
from spark_logbus.schemas.rest.answers import CONTENT_TYPE, CONTENT_TYPES

# What a body may be said to be. Not what a browser sends of a foreign page without asking.
_BODY_TYPES: Final = (*CONTENT_TYPES, "application/octet-stream")
_CONTEXT: Final = ":.:"
_ALL_CONTEXTS: Final = ":*:"
_NOT_PERMITTED: Final = 42205
# Settings of a subject's that Confluent's registry keeps, and this one does not.
_FOREIGN_SETTINGS: Final = (
    "alias",
    "aliasForDeks",
    "normalize",
    "validateFields",
    "validateNewSchemas",
    "validateRules",
    "compatibilityPolicy",
    "compatibilityGroup",
    "defaultMetadata",
    "overrideMetadata",
    "defaultRuleSet",
    "overrideRuleSet",
)

T = TypeVar("T")


# -- parameters ---------------------------------------------------------------------------


def subject_of(request: Request) -> str:
    return request.parameters["subject"].removeprefix(_CONTEXT)


def subject_or_none(request: Request) -> str | None:
    """Returns the subject that a request names; None: all subjects."""
    given = request.parameters.get("subject")
    return None if given in (None, _CONTEXT) else subject_of(request)


def prefix_of(request: Request) -> str:
    given = request.query.get("subjectPrefix", "")
    return given.removeprefix(_ALL_CONTEXTS if given.startswith(_ALL_CONTEXTS) else _CONTEXT)


def id_of(request: Request) -> int:
    text = request.parameters["id"]
    if not (text.isascii() and text.isdigit() and len(text) <= 10):
        raise UnknownSchemaError(f"There is no schema with the id {text[:40]!r}.")
    return int(text)


def flag(request: Request, name: str) -> bool:
    return request.query.get(name, "").lower() == "true"


def page(request: Request, found: Sequence[T], most: int | None = None) -> Sequence[T]:
    """Returns the page of ``found`` that a request asks for: from ``offset`` on, ``limit`` at most
    where that is not negative."""
    offset, limit = _number(request, "offset", 0), _number(request, "limit", -1)
    if offset < 0:
        raise HttpError(422, f"The offset is 0 or more, got {offset}.")
    if most is not None:
        limit = most if limit < 0 else min(limit, most)
    return found[offset:] if limit < 0 else found[offset : offset + limit]


def _number(request: Request, name: str, default: int) -> int:
    text = request.query.get(name, str(default))
    digits = text.removeprefix("-")
    if not (digits.isascii() and digits.isdigit() and len(digits) <= 10):
        raise HttpError(404, f"{name} is a number, got {text[:40]!r}.")
    return int(text)


# -- bodies -------------------------------------------------------------------------------


class GivenSchema(NamedTuple):
    """A schema as a request's body has it."""

    text: str
    references: Sequence[Reference]
    schema_id: int | None
    version: int | None


def body_of(request: Request) -> dict[str, Any]:
    """The JSON object that was sent. Raises HttpError (415, 400, 422)."""
    kind = request.headers.get("content-type", CONTENT_TYPE).partition(";")[0].strip().lower()
    if kind not in _BODY_TYPES:
        raise HttpError(415, f"Send {CONTENT_TYPE}, not {kind[:100]!r}.")
    body = request.json() if request.body else None
    if body is None:
        raise HttpError(422, "The body may not be empty; send a JSON object.")
    if not isinstance(body, dict):
        raise HttpError(400, "The body is to be a JSON object.")
    return body


def settings_of(request: Request) -> dict[str, Any]:
    """The body of a change of settings. Raises HttpError (42205) for those that are not kept."""
    body = body_of(request)
    for name in _FOREIGN_SETTINGS:
        if body.get(name):
            message = f"{name!r} cannot be kept here; leave it out."
            raise HttpError(422, message, code=_NOT_PERMITTED)
    return body


def schema_of(request: Request) -> GivenSchema:
    """Raises InvalidSchemaError, InvalidVersionError, HttpError."""
    body = body_of(request)
    kind = body.get("schemaType") or "AVRO"
    if kind != "AVRO":
        raise InvalidSchemaError(f"The schema type is AVRO here, got {str(kind)[:40]!r}.")
    for name in ("metadata", "ruleSet"):
        if body.get(name):
            raise InvalidSchemaError(f"{name!r} cannot be kept here; leave it out.")
    text = body.get("schema")
    if not isinstance(text, str) or not text:
        raise InvalidSchemaError("There is no schema in the body; 'schema' is its text.")
    schema_id, version = (_whole(body, name) for name in ("id", "version"))
    return GivenSchema(
        text,
        _references(body.get("references") or []),
        None if schema_id is None or schema_id < 0 else schema_id,
        None if version is None or version <= 0 else version,
    )


def _whole(body: Mapping[str, Any], name: str) -> int | None:
    number = body.get(name)
    if number is not None and (not isinstance(number, int) or isinstance(number, bool)):
        raise HttpError(422, f"{name!r} is a number, got {str(number)[:40]!r}.")
    return number


def _references(given: object) -> list[Reference]:
    if not isinstance(given, list):
        raise InvalidSchemaError("References are an array.", "references")
    found = []
    for number, each in enumerate(given):
        place = f"references[{number}]"
        fields = each if isinstance(each, dict) else {}
        name, subject = fields.get("name"), fields.get("subject")
        if not isinstance(name, str) or not isinstance(subject, str):
            raise InvalidSchemaError("A reference has 'name', 'subject' and 'version'.", place)
        version = parse_version(fields.get("version"))
        found.append(Reference(name, subject.removeprefix(_CONTEXT), version))
    return found
