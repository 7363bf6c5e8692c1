"""Errors about schemas and the registry that keeps them; each holds what its message names."""

from __future__ import annotations

from collections.abc import Sequence

from spark_logbus.errors import InvalidRequestError


class InvalidSchemaError(InvalidRequestError):
    """A text that is no schema of Avro's; ``place`` is where, as ``fields[2].type``."""

    def __init__(self, message: str, place: str = "") -> None:
        super().__init__(message, place)
        self.place = place

    @property
    def message(self) -> str:
        return f"{self.place or 'The schema'}: {self.args[0]}"

    def __str__(self) -> str:
        return self.message


class SchemaTooLargeError(InvalidSchemaError):
    """A schema with more bytes than the registry takes."""


class IncompatibleSchemaError(InvalidRequestError):
    """A schema that breaks the compatibility of its subject."""

    def __init__(self, message: str, faults: Sequence[str] = ()) -> None:
        super().__init__(message, faults)
        self.faults = tuple(faults)

    def __str__(self) -> str:
        return self.message


class UnknownSubjectError(InvalidRequestError):
    """A subject without any version, or with soft-deleted ones only."""


class UnknownVersionError(InvalidRequestError):
    """A version that the subject does not have, or that is soft-deleted."""


class UnknownSchemaError(InvalidRequestError):
    """An id, or a schema under a subject, that the registry does not have."""


class InvalidVersionError(InvalidRequestError):
    """Text or a number that is no version."""


class SubjectDeletedError(InvalidRequestError):
    """A subject that is soft-deleted already."""


class SubjectNotDeletedError(InvalidRequestError):
    """A permanent deletion of a subject that is not soft-deleted."""


class VersionDeletedError(InvalidRequestError):
    """A version that is soft-deleted already."""


class VersionNotDeletedError(InvalidRequestError):
    """A permanent deletion of a version that is not soft-deleted."""


class NotConfiguredError(InvalidRequestError):
    """A subject without a compatibility or mode of its own."""


class InvalidCompatibilityError(InvalidRequestError):
    """A compatibility that there is not."""


class InvalidModeError(InvalidRequestError):
    """A mode that there is not."""


class NotPermittedError(InvalidRequestError):
    """A change that the mode of the subject does not allow."""


class ReferenceExistsError(InvalidRequestError):
    """The deletion of a version that another schema refers to, of the subject ``referrer``."""

    def __init__(self, message: str, referrer: str = "") -> None:
        super().__init__(message, referrer)
        self.referrer = referrer

    def __str__(self) -> str:
        return self.message


class SubjectChangedError(InvalidRequestError):
    """A registration that was meant to follow another version than the subject's latest."""


class IdMismatchError(InvalidRequestError):
    """An imported id that stands for another schema."""
