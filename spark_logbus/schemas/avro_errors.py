"""Translation of avro_columns' errors into logbus's, where its functions are called."""

from __future__ import annotations

from contextlib import ContextDecorator
from types import TracebackType
from typing import Final

from avro_columns import errors as avro
from spark_logbus.errors import (
    InvalidRequestError,
    LogbusError,
    RecordBatchTooLargeError,
    SchemaMismatchError,
    SchemaResolutionError,
    UndecodableRecordError,
    UnsupportedSchemaError,
)
from spark_logbus.schemas.errors import (
    InvalidCompatibilityError,
    InvalidSchemaError,
    SchemaTooLargeError,
)

_CLASSES: Final[dict[type[avro.AvroError], type[LogbusError]]] = {
    avro.AvroError: InvalidRequestError,
    avro.SchemaSyntaxError: InvalidSchemaError,
    avro.SchemaTextTooLargeError: SchemaTooLargeError,
    avro.UnknownCompatibilityError: InvalidCompatibilityError,
    avro.UnsupportedTypeError: UnsupportedSchemaError,
    avro.ValueMismatchError: SchemaMismatchError,
    avro.ResolutionError: SchemaResolutionError,
    avro.BatchTooLargeError: RecordBatchTooLargeError,
    avro.UndecodableDatumError: UndecodableRecordError,
}


def in_logbus(error: avro.AvroError) -> LogbusError:
    """Returns the error of logbus that says the same, to be raised ``from`` the other."""
    return _CLASSES[type(error)](*error.args)


class _LogbusErrors(ContextDecorator):
    """Raises errors of avro_columns that leave its block, or the function it decorates, as
    logbus's own. Has no state: threads and nested blocks share one. Not for generators, whose
    bodies run after the decorated call has returned."""

    def __enter__(self) -> None:
        return None

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if isinstance(error, avro.AvroError):
            raise in_logbus(error) from error


logbus_errors: Final = _LogbusErrors()
