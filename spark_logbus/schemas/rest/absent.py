"""The API's calls about what is not kept here: contexts, GUIDs, metadata, associations and tags.

They are answered as Confluent's registry answers where there are none, or refused with a
documented code: a client that asks in passing goes on, and one that needs them is told what is
missing.
"""

from __future__ import annotations

from typing import Final, NoReturn

from spark_logbus.http import Handler, HttpError, Request, Response
from spark_logbus.schemas.errors import InvalidSchemaError, UnknownSchemaError
from spark_logbus.schemas.registry.registry import SchemaRegistry
from spark_logbus.schemas.rest.answers import answer
from spark_logbus.schemas.rest.requests import flag, page, subject_of

_NO_CONTEXT: Final = 40401
_NO_ASSOCIATION: Final = 40410
_CONTEXT_NOT_EMPTY: Final = 42211
_INVALID_ASSOCIATION: Final = 42212
_CONTEXT: Final = "."


def handlers_of_absent(registry: SchemaRegistry) -> dict[str, Handler]:
    """Thread-safe, as the registry is."""

    def find_metadata(request: Request) -> NoReturn:
        """The latest version with some metadata."""
        subject = subject_of(request)
        registry.subject(subject).seen(deleted=flag(request, "deleted"))
        raise UnknownSchemaError(f"The subject {subject!r} has no version with metadata.")

    return {
        "GET /subjects/{subject}/metadata": find_metadata,
        "POST /subjects/{subject}/versions/{version}/tags": _tag,
        "GET /schemas/guids/{guid}": _find_guid,
        "GET /schemas/guids/{guid}/ids": _find_guid,
        "GET /contexts": _list_contexts,
        "DELETE /contexts/{context}": _delete_context,
        "GET /associations/subjects/{subject}": _list_associations,
        "GET /associations/resources/{resource}": _list_associations,
        "GET /associations/resources/{namespace}/{name}": _list_associations,
        "POST /associations": _associate,
        "PUT /associations/resources/{resource}": _associate,
        "DELETE /associations/resources/{resource}": _dissociate,
    }


def _tag(request: Request) -> NoReturn:
    raise InvalidSchemaError("Tags cannot be kept here; register a schema that has them.")


def _find_guid(request: Request) -> NoReturn:
    guid = request.parameters["guid"]
    raise UnknownSchemaError(f"There is no schema with the GUID {guid[:40]!r}; ask by its id.")


def _list_contexts(request: Request) -> Response:
    prefix = request.query.get("contextPrefix", "")
    return answer(request, page(request, [each for each in [_CONTEXT] if each.startswith(prefix)]))


def _delete_context(request: Request) -> NoReturn:
    context = request.parameters["context"]
    if context == _CONTEXT:
        raise HttpError(422, "The only context stays.", code=_CONTEXT_NOT_EMPTY)
    raise HttpError(404, f"There is no context {context[:40]!r}.", code=_NO_CONTEXT)


def _list_associations(request: Request) -> Response:
    return answer(request, [])


def _associate(request: Request) -> NoReturn:
    message = "Associations cannot be kept here; a topic names its subjects in its configuration."
    raise HttpError(422, message, code=_INVALID_ASSOCIATION)


def _dissociate(request: Request) -> NoReturn:
    resource = request.parameters["resource"]
    raise HttpError(404, f"Nothing is associated with {resource[:40]!r}.", code=_NO_ASSOCIATION)
