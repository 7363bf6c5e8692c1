"""Errors of avro_columns: one root, a class for each thing that a caller can act on.

Messages hold both values ("expected 3, got 5") and the remedy.
"""

from __future__ import annotations


class AvroError(Exception):
    """Root of all errors of avro_columns."""

    @property
    def message(self) -> str:
        return str(self.args[0]) if self.args else type(self).__name__


class SchemaSyntaxError(AvroError):
    """A text that is no schema of Avro's; ``place`` is where, as ``fields[2].type``."""

    def __init__(self, message: str, place: str = "") -> None:
        super().__init__(message, place)
        self.place = place

    @property
    def message(self) -> str:
        return f"{self.place or 'The schema'}: {self.args[0]}"

    def __str__(self) -> str:
        return self.message


class SchemaTextTooLargeError(SchemaSyntaxError):
    """A schema's text above ``json_text.MAX_SCHEMA_BYTES``."""


class UnknownCompatibilityError(AvroError):
    """A name that stands for no compatibility."""


class UnsupportedTypeError(AvroError):
    """A schema whose values no columns can hold, or columns that no schema describes."""


class ValueMismatchError(AvroError):
    """Columns or values that the schema they are to be written with does not take."""


class ResolutionError(AvroError):
    """A reader's schema to which values of the writer's schema cannot be resolved."""


class BatchTooLargeError(AvroError):
    """Datums or columns that would take more bytes than the caller or Arrow allows."""


class UndecodableDatumError(AvroError):
    """A value that is not a datum of the schema it was written with."""
