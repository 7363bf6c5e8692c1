"""The REST API: paths, parameters and bodies of Confluent's Schema Registry, over our registry."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, Final, TypeVar

from avro_columns.compatibility import Compatibility
from spark_logbus.http import Handler, HttpError, Request, Response, Routes
from spark_logbus.schemas.avro_errors import logbus_errors
from spark_logbus.schemas.errors import (
    InvalidSchemaError,
    NotConfiguredError,
    ReferenceExistsError,
    UnknownSubjectError,
)
from spark_logbus.schemas.registry.administration import SchemaAdministration
from spark_logbus.schemas.registry.registry import RegisteredSchema, SchemaRegistry
from spark_logbus.schemas.registry.subjects import Content, Mode, parse_version
from spark_logbus.schemas.rest.absent import handlers_of_absent
from spark_logbus.schemas.rest.access import Access
from spark_logbus.schemas.rest.answers import (
    accepted,
    accepted_for_error,
    answer,
    describe,
    of_content,
    of_faults,
    of_version,
    text_answer,
)
from spark_logbus.schemas.rest.requests import (
    GivenSchema,
    body_of,
    flag,
    id_of,
    page,
    prefix_of,
    schema_of,
    settings_of,
    subject_of,
    subject_or_none,
)
from spark_logbus.security.acls import Operation

_NO_SUBJECT: Final = 40401
_NO_VERSION: Final = 40402
_NO_COMPATIBILITY: Final = 40408
_NO_MODE: Final = 40409
# Of a list of schemas, by what no schema here has: rules, and associations with topics.
_FILTERS: Final = ("ruleType", "resourceType", "associationType", "lifecycle")
# Of an answer with schemas' texts: as much as one thread may hold. It ends with the schema that
# goes beyond it, and a next page begins after that one.
_MAX_PAGE: Final = 1_000
_MAX_PAGE_BYTES: Final = 8 << 20

T = TypeVar("T")


class RestApi:
    """Handlers of requests. Thread-safe."""

    def __init__(
        self, registry: SchemaRegistry, administration: SchemaAdministration, access: Access
    ) -> None:
        self._registry = registry
        self._administration = administration
        self._access = access

    def routes(self) -> Routes:
        versions = "/subjects/{subject}/versions"
        handlers: dict[str, Handler] = {
            "GET /": lambda request: answer(request, {}),
            "POST /": lambda request: answer(request, {}),
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
            "GET /healthz": self._show_health,
            **handlers_of_absent(self._registry),
        }
        return Routes(
            {
                route: _negotiated(self._access.guarded(route, handler))
                for route, handler in handlers.items()
            },
            describe=describe,
            content_type=accepted_for_error,
        )

    def _show_health(self, request: Request) -> Response:
        """Raises CoordinationError (503) when ZooKeeper does not answer."""
        self._registry.settings()
        return answer(request, {"status": "ok"})

    # -- subjects and versions -----------------------------------------------------------

    def _list_subjects(self, request: Request) -> Response:
        found = self._registry.subjects(
            prefix_of(request),
            deleted=flag(request, "deleted"),
            deleted_only=flag(request, "deletedOnly"),
        )
        shown = [each for each in found if self._access.allows(request, Operation.DESCRIBE, each)]
        return answer(request, page(request, shown))

    def _list_versions(self, request: Request) -> Response:
        only = flag(request, "deletedOnly")
        subject = self._registry.subject(subject_of(request))
        found = subject.seen(deleted=only or flag(request, "deleted"))
        numbers = [each.version for each in found if each.deleted or not only]
        return answer(request, page(request, numbers))

    def _version(self, request: Request) -> RegisteredSchema:
        version = parse_version(request.parameters["version"])
        deleted = flag(request, "deleted")
        return self._registry.version(subject_of(request), version, deleted=deleted)

    def _show_version(self, request: Request) -> Response:
        return answer(request, of_version(self._formatted(request, self._version(request))))

    def _show_text(self, request: Request) -> Response:
        return text_answer(request, self._formatted(request, self._version(request)).text)

    def _formatted(self, request: Request, found: RegisteredSchema) -> RegisteredSchema:
        return replace(found, text=self._text(request, found.schema_id, found.text))

    def _text(self, request: Request, schema_id: int, text: str) -> str:
        """A schema's text in the format that is wanted: as it is, or with all that it refers to.
        Formats that are not known are those of other kinds of schemas, and change nothing."""
        if request.query.get("format") != "resolved":
            return text
        return json.dumps(self._registry.avro(schema_id), separators=(",", ":"))

    def _list_referrers(self, request: Request) -> Response:
        version = parse_version(request.parameters["version"])
        found = self._registry.subject(subject_of(request)).find(version, deleted=True)
        ids = self._registry.referrers(
            subject_of(request), found.version, deleted=flag(request, "deleted")
        )
        return answer(request, page(request, ids))

    def _given(self, request: Request) -> GivenSchema:
        """The schema that was sent, and that refers to subjects that its sender may read."""
        given = schema_of(request)
        for each in given.references:
            self._access.require(request, Operation.READ, each.subject)
        return given

    def _register(self, request: Request) -> Response:
        given = self._given(request)
        made = self._registry.register(
            subject_of(request),
            given.text,
            given.references,
            normalize=flag(request, "normalize"),
            schema_id=given.schema_id,
            version=given.version,
        )
        return answer(request, {"id": made.schema_id, "version": made.version})

    def _look_up(self, request: Request) -> Response:
        given = self._given(request)
        found = self._registry.lookup(
            subject_of(request),
            given.text,
            given.references,
            normalize=flag(request, "normalize"),
            deleted=flag(request, "deleted"),
        )
        return answer(request, of_version(self._formatted(request, found)))

    def _delete_version(self, request: Request) -> Response:
        version = parse_version(request.parameters["version"])
        permanent = flag(request, "permanent")
        with self._hiding_referrers(request):
            deleted = self._administration.delete_version(
                subject_of(request), version, permanent=permanent
            )
        return answer(request, deleted)

    def _delete_subject(self, request: Request) -> Response:
        permanent = flag(request, "permanent")
        with self._hiding_referrers(request):
            deleted = self._administration.delete_subject(subject_of(request), permanent=permanent)
        return answer(request, deleted)

    @contextlib.contextmanager
    def _hiding_referrers(self, request: Request) -> Iterator[None]:
        """Names no subject that refers to another one to those who may not know of it."""
        try:
            yield
        except ReferenceExistsError as error:
            if self._access.allows(request, Operation.DESCRIBE, error.referrer):
                raise
            raise ReferenceExistsError("A subject that you may not see refers to that.") from None

    # -- ids -----------------------------------------------------------------------------

    def _list_schemas(self, request: Request) -> Response:
        if any(name in request.query for name in _FILTERS):
            return answer(request, [])
        found = self._registry.all_versions(
            prefix_of(request),
            deleted=flag(request, "deleted"),
            latest_only=flag(request, "latestOnly"),
        )
        may = {name: self._access.allows(request, Operation.READ, name) for name, _ in found}
        found = [each for each in found if may[each[0]]]
        size, shown = 0, []
        for subject, each in page(request, found, most=_MAX_PAGE):
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
        body = of_content(self._content(request))
        if flag(request, "fetchMaxId"):
            body["maxId"] = self._registry.last_id()
        return answer(request, body)

    def _show_text_of_id(self, request: Request) -> Response:
        return text_answer(request, self._content(request).text)

    def _content(self, request: Request) -> Content:
        schema_id = id_of(request)
        self._access.require_id(
            request,
            schema_id,
            lambda: {name for name, _ in self._registry.uses(schema_id, deleted=True)},
        )
        found = self._registry.by_id_now(schema_id)
        return replace(found, text=self._text(request, schema_id, found.text))

    def _list_subjects_of_id(self, request: Request) -> Response:
        uses = self._uses(request)
        return answer(request, page(request, list(dict.fromkeys(name for name, _ in uses))))

    def _list_versions_of_id(self, request: Request) -> Response:
        uses = [{"subject": name, "version": version} for name, version in self._uses(request)]
        return answer(request, page(request, uses))

    def _uses(self, request: Request) -> list[tuple[str, int]]:
        wanted = request.query.get("subject")
        uses = self._registry.uses(id_of(request), deleted=flag(request, "deleted"))
        return [
            each
            for each in uses
            if wanted in (None, each[0])
            and self._access.allows(request, Operation.DESCRIBE, each[0])
        ]

    # -- compatibility -------------------------------------------------------------------

    def _check(self, request: Request) -> Response:
        verbose = flag(request, "verbose")
        named = request.parameters.get("version")
        version = None if named is None else parse_version(named)
        given = self._given(request)
        subject = subject_of(request)
        try:
            faults = self._registry.check(
                subject,
                given.text,
                given.references,
                version=version,
                normalize=flag(request, "normalize"),
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
        subject = subject_or_none(request)
        if subject is None or flag(request, "defaultToGlobal"):
            found = self._registry.compatibility(subject)
        else:
            found = _configured(
                self._registry.subject(subject).compatibility,
                f"The subject {subject!r} has no compatibility of its own.",
                _NO_COMPATIBILITY,
            )
        return answer(request, {"compatibilityLevel": found.name})

    def _set_compatibility(self, request: Request) -> Response:
        with logbus_errors:
            wanted = Compatibility.named(settings_of(request).get("compatibility"))
        self._administration.set_compatibility(subject_or_none(request), wanted)
        return answer(request, {"compatibility": wanted.name})

    def _unset_compatibility(self, request: Request) -> Response:
        before = _unset(self._administration.unset_compatibility, subject_or_none(request))
        return answer(request, {"compatibilityLevel": before.name})

    # -- modes ---------------------------------------------------------------------------

    def _show_mode(self, request: Request) -> Response:
        subject = subject_or_none(request)
        if subject is None or flag(request, "defaultToGlobal"):
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
        force = flag(request, "force")
        self._administration.set_mode(subject_or_none(request), wanted, force=force)
        return answer(request, {"mode": wanted.name})

    def _unset_mode(self, request: Request) -> Response:
        before = _unset(self._administration.unset_mode, subject_or_none(request))
        return answer(request, {"mode": before.name})


def _negotiated(handler: Handler) -> Handler:
    """Refuses clients that could not take the answer, before anything is done."""

    def handle(request: Request) -> Response:
        accepted(request)
        return handler(request)

    return handle


def _configured(value: T | None, message: str, code: int) -> T:
    if value is None:
        raise HttpError(404, message, code=code)
    return value


def _unset(unset: Callable[[str | None], T], subject: str | None) -> T:
    try:
        return unset(subject)
    except NotConfiguredError as error:
        raise HttpError(404, error.message, code=_NO_SUBJECT) from error
