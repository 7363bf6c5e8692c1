"""The REST API: paths, parameters and bodies of Confluent's Schema Registry, over our registry."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeVar

from spark_logbus.http import Handler, HttpError, Request, Response, Routes
from spark_logbus.schemas.compatibility import Compatibility
from spark_logbus.schemas.errors import (
    InvalidSchemaError,
    NotConfiguredError,
    UnknownSchemaError,
    UnknownSubjectError,
)
from spark_logbus.schemas.registry.administration import SchemaAdministration
from spark_logbus.schemas.registry.registry import RegisteredSchema, SchemaRegistry
from spark_logbus.schemas.registry.subjects import Mode, Reference, parse_version
from spark_logbus.schemas.rest.answers import (
    CONTENT_TYPE,
    accepted,
    answer,
    body_of,
    describe,
    of_content,
    of_faults,
    of_version,
    text_answer,
)

_NO_SUBJECT: Final = 40401
_NO_VERSION: Final = 40402
_NO_COMPATIBILITY: Final = 40408
_NO_MODE: Final = 40409
# Of an answer with schemas' texts: as much as one thread may hold. It ends with the schema that
# goes beyond it, and a next page begins after that one.
_MAX_PAGE: Final = 1_000
_MAX_PAGE_BYTES: Final = 8 << 20

T = TypeVar("T")


class _Given(NamedTuple):
    """A schema as a request's body has it."""

    text: str
    references: Sequence[Reference]
    schema_id: int | None
    version: int | None


class RestApi:
    """Handlers of requests. Thread-safe."""

    def __init__(self, registry: SchemaRegistry, administration: SchemaAdministration) -> None:
        self._registry = registry
        self._administration = administration

    def routes(self) -> Routes:
        versions = "/subjects/{subject}/versions"
        handlers: dict[str, Handler] = {
            "GET /": lambda request: answer(request, {}),
            "GET /subjects": self._list_subjects,
            "POST /subjects/{subject}": self._look_up,
            "DELETE /subjects/{subject}": self._delete_subject,
            f"GET {versions}": self._list_versions,
            f"POST {versions}": self._register,
            f"GET {versions}/{{version}}": self._show_version,
            f"DELETE {versions}/{{version}}": self._delete_version,
            f"GET {versions}/{{version}}/schema": self._show_text,
            f"GET {versions}/{{version}}/referencedby": self._list_referrers,
            "GET /schemas": self._list_schemas,
            "GET /schemas/types": lambda request: answer(request, ["AVRO"]),
            "GET /schemas/ids/{id}": self._show_id,
            "GET /schemas/ids/{id}/schema": self._show_text_of_id,
            "GET /schemas/ids/{id}/subjects": self._list_subjects_of_id,
            "GET /schemas/ids/{id}/versions": self._list_versions_of_id,
            f"POST /compatibility{versions}": self._check,
            f"POST /compatibility{versions}/{{version}}": self._check,
            "GET /config": self._show_compatibility,
            "PUT /config": self._set_compatibility,
            "DELETE /config": self._unset_compatibility,
            "GET /config/{subject}": self._show_compatibility,
            "PUT /config/{subject}": self._set_compatibility,
            "DELETE /config/{subject}": self._unset_compatibility,
            "GET /mode": self._show_mode,
            "PUT /mode": self._set_mode,
            "DELETE /mode": self._unset_mode,
            "GET /mode/{subject}": self._show_mode,
            "PUT /mode/{subject}": self._set_mode,
            "DELETE /mode/{subject}": self._unset_mode,
            "GET /contexts": lambda request: answer(request, ["."]),
            "GET /healthz": self._show_health,
        }
        return Routes(
            {route: _negotiated(handler) for route, handler in handlers.items()},
            describe=describe,
            content_type=CONTENT_TYPE,
        )

    def _show_health(self, request: Request) -> Response:
        """Raises CoordinationError (503) when ZooKeeper does not answer."""
        self._registry.settings()
        return answer(request, {"status": "ok"})

    # -- subjects and versions -----------------------------------------------------------

    def _list_subjects(self, request: Request) -> Response:
        found = self._registry.subjects(
            request.query.get("subjectPrefix", ""),
            deleted=_flag(request, "deleted"),
            deleted_only=_flag(request, "deletedOnly"),
        )
        return answer(request, _page(request, found))

    def _list_versions(self, request: Request) -> Response:
        only = _flag(request, "deletedOnly")
        subject = self._registry.subject(_subject(request))
        found = subject.seen(deleted=only or _flag(request, "deleted"))
        numbers = [each.version for each in found if each.deleted or not only]
        return answer(request, _page(request, numbers))

    def _version(self, request: Request) -> RegisteredSchema:
        version = parse_version(request.parameters["version"])
        deleted = _flag(request, "deleted")
        return self._registry.version(_subject(request), version, deleted=deleted)

    def _show_version(self, request: Request) -> Response:
        return answer(request, of_version(self._version(request)))

    def _show_text(self, request: Request) -> Response:
        return text_answer(request, self._version(request).text)

    def _list_referrers(self, request: Request) -> Response:
        version = parse_version(request.parameters["version"])
        found = self._registry.subject(_subject(request)).find(version, deleted=True)
        ids = self._registry.referrers(
            _subject(request), found.version, deleted=_flag(request, "deleted")
        )
        return answer(request, _page(request, ids))

    def _register(self, request: Request) -> Response:
        given = _given(request)
        made = self._registry.register(
            _subject(request),
            given.text,
            given.references,
            normalize=_flag(request, "normalize"),
            schema_id=given.schema_id,
            version=given.version,
        )
        return answer(request, {"id": made.schema_id, "version": made.version})

    def _look_up(self, request: Request) -> Response:
        given = _given(request)
        found = self._registry.lookup(
            _subject(request),
            given.text,
            given.references,
            normalize=_flag(request, "normalize"),
            deleted=_flag(request, "deleted"),
        )
        return answer(request, of_version(found))

    def _delete_version(self, request: Request) -> Response:
        version = parse_version(request.parameters["version"])
        permanent = _flag(request, "permanent")
        deleted = self._administration.delete_version(
            _subject(request), version, permanent=permanent
        )
        return answer(request, deleted)

    def _delete_subject(self, request: Request) -> Response:
        permanent = _flag(request, "permanent")
        deleted = self._administration.delete_subject(_subject(request), permanent=permanent)
        return answer(request, deleted)

    # -- ids -----------------------------------------------------------------------------

    def _list_schemas(self, request: Request) -> Response:
        found = self._registry.all_versions(
            request.query.get("subjectPrefix", ""),
            deleted=_flag(request, "deleted"),
            latest_only=_flag(request, "latestOnly"),
        )
        size, shown = 0, []
        for subject, each in _page(request, found, most=_MAX_PAGE):
            content = self._registry.by_id(each.schema_id)
            shown.append(
                of_version(
                    RegisteredSchema(
                        subject,
                        each.version,
                        each.schema_id,
                        content.text,
                        content.references,
                        each.deleted,
                    )
                )
            )
            size += len(content.text)
            if size > _MAX_PAGE_BYTES:
                break
        return answer(request, shown)

    def _show_id(self, request: Request) -> Response:
        return answer(request, of_content(self._registry.by_id_now(_id(request))))

    def _show_text_of_id(self, request: Request) -> Response:
        return text_answer(request, self._registry.by_id_now(_id(request)).text)

    def _list_subjects_of_id(self, request: Request) -> Response:
        uses = self._uses(request)
        return answer(request, _page(request, list(dict.fromkeys(name for name, _ in uses))))

    def _list_versions_of_id(self, request: Request) -> Response:
        uses = [{"subject": name, "version": version} for name, version in self._uses(request)]
        return answer(request, _page(request, uses))

    def _uses(self, request: Request) -> list[tuple[str, int]]:
        wanted = request.query.get("subject")
        uses = self._registry.uses(_id(request), deleted=_flag(request, "deleted"))
        return [each for each in uses if wanted in (None, each[0])]

    # -- compatibility -------------------------------------------------------------------

    def _check(self, request: Request) -> Response:
        verbose = _flag(request, "verbose")
        named = request.parameters.get("version")
        version = None if named is None else parse_version(named)
        given = _given(request)
        subject = _subject(request)
        try:
            faults = self._registry.check(
                subject,
                given.text,
                given.references,
                version=version,
                normalize=_flag(request, "normalize"),
            )
        except InvalidSchemaError as error:
            if not verbose:
                raise
            return answer(request, {"is_compatible": False, "messages": [error.message]})
        except UnknownSubjectError as error:
            raise HttpError(404, error.message, code=_NO_VERSION) from error
        body: dict[str, Any] = {"is_compatible": not faults}
        if verbose:
            body["messages"] = of_faults(faults, self._registry.compatibility(subject).name)
        return answer(request, body)

    def _show_compatibility(self, request: Request) -> Response:
        subject = _subject_or_none(request)
        if subject is None or _flag(request, "defaultToGlobal"):
            found = self._registry.compatibility(subject)
        else:
            found = _configured(
                self._registry.subject(subject).compatibility,
                f"The subject {subject!r} has no compatibility of its own.",
                _NO_COMPATIBILITY,
            )
        return answer(request, {"compatibilityLevel": found.name})

    def _set_compatibility(self, request: Request) -> Response:
        wanted = Compatibility.named(body_of(request).get("compatibility"))
        self._administration.set_compatibility(_subject_or_none(request), wanted)
        return answer(request, {"compatibility": wanted.name})

    def _unset_compatibility(self, request: Request) -> Response:
        before = _unset(self._administration.unset_compatibility, _subject_or_none(request))
        return answer(request, {"compatibilityLevel": before.name})

    # -- modes ---------------------------------------------------------------------------

    def _show_mode(self, request: Request) -> Response:
        subject = _subject_or_none(request)
        if subject is None or _flag(request, "defaultToGlobal"):
            found = self._registry.mode(subject)
        else:
            found = _configured(
                self._registry.subject(subject).mode,
                f"The subject {subject!r} has no mode of its own.",
                _NO_MODE,
            )
        return answer(request, {"mode": found.name})

    def _set_mode(self, request: Request) -> Response:
        wanted = Mode.named(body_of(request).get("mode"))
        force = _flag(request, "force")
        self._administration.set_mode(_subject_or_none(request), wanted, force=force)
        return answer(request, {"mode": wanted.name})

    def _unset_mode(self, request: Request) -> Response:
        before = _unset(self._administration.unset_mode, _subject_or_none(request))
        return answer(request, {"mode": before.name})


def _negotiated(handler: Handler) -> Handler:
    """Nothing is done for who could not take the answer."""

    def handle(request: Request) -> Response:
        accepted(request)
        return handler(request)

    return handle


# -- parameters ---------------------------------------------------------------------------


def _subject(request: Request) -> str:
    return request.parameters["subject"]


def _subject_or_none(request: Request) -> str | None:
    return request.parameters.get("subject")


def _id(request: Request) -> int:
    text = request.parameters["id"]
    if not (text.isascii() and text.isdigit() and len(text) <= 10):
        raise UnknownSchemaError(f"There is no schema with the id {text[:40]!r}.")
    return int(text)


def _flag(request: Request, name: str) -> bool:
    return request.query.get(name, "").lower() == "true"


def _page(request: Request, found: Sequence[T], most: int | None = None) -> Sequence[T]:
    """From ``offset`` on, ``limit`` at most, if that is not negative."""
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


def _given(request: Request) -> _Given:
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
    return _Given(
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
        found.append(Reference(name, subject, parse_version(fields.get("version"))))
    return found


def _configured(value: T | None, message: str, code: int) -> T:
    if value is None:
        raise HttpError(404, message, code=code)
    return value


def _unset(unset: Callable[[str | None], T], subject: str | None) -> T:
    try:
        return unset(subject)
    except NotConfiguredError as error:
        raise HttpError(404, error.message, code=_NO_SUBJECT) from error
