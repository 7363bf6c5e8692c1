"""What the REST service says: content types, bodies, and the codes of errors, as Confluent's
Schema Registry documents them."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, Final

from avro_columns.compatibility import VersionFault
from spark_logbus.errors import CoordinationError, InvalidNameError, LogbusError
from spark_logbus.http import HttpError, Request, Response
from spark_logbus.schemas import errors
from spark_logbus.schemas.registry.registry import RegisteredSchema
from spark_logbus.schemas.registry.subjects import Content, Reference

CONTENT_TYPE: Final = "application/vnd.schemaregistry.v1+json"
# Best first; a request may name any, or none.
CONTENT_TYPES: Final = (CONTENT_TYPE, "application/vnd.schemaregistry+json", "application/json")

_CODES: Final[dict[type[LogbusError], tuple[int, int]]] = {
    errors.UnknownSubjectError: (404, 40401),
    errors.UnknownVersionError: (404, 40402),
    errors.UnknownSchemaError: (404, 40403),
    errors.SubjectDeletedError: (404, 40404),
    errors.SubjectNotDeletedError: (404, 40405),
    errors.VersionDeletedError: (404, 40406),
    errors.VersionNotDeletedError: (404, 40407),
    errors.IncompatibleSchemaError: (409, 409),
    errors.SchemaTooLargeError: (422, 42209),
    errors.InvalidSchemaError: (422, 42201),
    errors.InvalidVersionError: (422, 42202),
    errors.InvalidCompatibilityError: (422, 42203),
    errors.InvalidModeError: (422, 42204),
    errors.NotPermittedError: (422, 42205),
    errors.ReferenceExistsError: (422, 42206),
    errors.IdMismatchError: (422, 42207),
}
_NO_SUBJECT: Final = 40401
_INVALID_SUBJECT: Final = 42208
_STORE_FAILED: Final = 50001
_NOT_REACHED: Final = 50003


def describe(request: Request, error: LogbusError) -> HttpError:
    """Returns the HTTP error of an error: its status, code and message."""
    for kind in type(error).__mro__:
        if kind in _CODES:
            status, code = _CODES[kind]
            return HttpError(status, error.message, code=code)
    if isinstance(error, InvalidNameError):
        # No subject can have such a name: who asks for it is told so, who makes it is corrected.
        if request.method == "PUT" or (request.method == "POST" and _registers(request)):
            return HttpError(422, error.message, code=_INVALID_SUBJECT)
        return HttpError(404, error.message, code=_NO_SUBJECT)
    if isinstance(error, CoordinationError) and error.retriable:
        return HttpError(503, error.message, code=_NOT_REACHED)
    if error.fault == "caller":
        return HttpError(422, error.message)
    return HttpError(500, error.message, code=_STORE_FAILED)


def _registers(request: Request) -> bool:
    path = request.path.removesuffix("/")
    return path.endswith("/versions") and not path.startswith("/compatibility")


# -- negotiation --------------------------------------------------------------------------


def accepted(request: Request) -> str:
    """The content type of the answer: of those that the client takes the one that it likes best,
    of these ours. Raises HttpError (406)."""
    wanted = request.headers.get("accept", "")
    parts = [part for part in wanted.split(",") if part.strip()]
    weights = dict(map(_weighted, parts or ["*/*"]))
    best = max(CONTENT_TYPES, key=lambda name: _weight(name, weights))
    if _weight(best, weights) == 0:
        raise HttpError(406, f"Answers are {', '.join(CONTENT_TYPES)}; {wanted[:100]!r} is none.")
    return best


def accepted_for_error(request: Request | None) -> str:
    """The content type of an error, which is told also to who would not take it."""
    try:
        return CONTENT_TYPE if request is None else accepted(request)
    except HttpError:
        return CONTENT_TYPE


def _weighted(part: str) -> tuple[str, float]:
    """A type of an Accept header, with its weight: 1 unless it is given."""
    name, *parameters = (each.strip().lower() for each in part.split(";"))
    given = next((each[2:] for each in parameters if each.startswith("q=")), "1")
    return name, float(given) if re.fullmatch(r"[01](\.\d{0,3})?", given) else 0.0


def _weight(name: str, weights: Mapping[str, float]) -> float:
    for pattern in (name, "application/*", "*/*"):
        if pattern in weights:
            return weights[pattern]
    return 0.0


def answer(request: Request, value: object) -> Response:
    body = json.dumps(value, separators=(",", ":")).encode()
    return Response(body, accepted(request))


def text_answer(request: Request, text: str) -> Response:
    """A schema's text as it is: it is JSON itself."""
    return Response(text.encode(), accepted(request))


# -- bodies -------------------------------------------------------------------------------


def of_version(found: RegisteredSchema) -> dict[str, Any]:
    body: dict[str, Any] = {
        "subject": found.subject,
        "version": found.version,
        "id": found.schema_id,
        "schema": found.text,
    }
    if found.references:
        body["references"] = [_of_reference(each) for each in found.references]
    if found.deleted:
        body["deleted"] = True
    return body


def of_content(content: Content) -> dict[str, Any]:
    body: dict[str, Any] = {"schema": content.text}
    if content.references:
        body["references"] = [_of_reference(each) for each in content.references]
    return body


def _of_reference(reference: Reference) -> dict[str, Any]:
    return {
        "name": reference.name,
        "subject": reference.subject,
        "version": reference.version,
    }


def of_faults(faults: list[VersionFault], compatibility: str) -> list[str]:
    """The messages of a verbose check: each fault, the versions compared with, and by what."""
    messages = []
    for each in faults:
        fault = each.fault
        whose = "new" if each.reader_is_new else "old"
        messages.append(
            f"{{errorType:'{fault.rule.name}', description:'At {fault.place or 'the top'} of the "
            f"{whose} schema, which reads: {fault.message}', additionalInfo:'{fault.detail}'}}"
        )
    messages += [f"{{oldSchemaVersion: {version}}}" for version in _versions(faults)]
    return [*messages, f"{{compatibility: '{compatibility}'}}"] if messages else []


def _versions(faults: list[VersionFault]) -> list[int]:
    return list(dict.fromkeys(each.version for each in faults))
