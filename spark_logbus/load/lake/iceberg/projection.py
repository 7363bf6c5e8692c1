"""Rows of one file of an Iceberg table, under the columns that the table has now.

Columns of a file and of the table are the same where their ids are: other writers rename, add and
widen columns, and put fields in another order. The library ``pyiceberg`` reads files so too, but
makes an empty list of a list of structs that is null (``ArrowProjectionVisitor.list``), so that
rows which are stored anew would not be the same any more.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyarrow import compute as pc
from pyarrow import fs as pafs
from pyarrow import parquet as pq
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat

from spark_logbus.load.errors import WarehouseError

_ID = b"PARQUET:field_id"
#: Rows of a batch, and bytes of a column that are read at once.
_BATCH_ROWS = 16_384
_BUFFER_BYTES = 8 << 20


def rows_in(
    stream: pafs.NativeFile,
    wanted: pa.Schema,
    constants: Mapping[str, pa.Scalar],
    ids_by_name: Mapping[str, int],
) -> Iterator[pa.RecordBatch]:
    """Reads a file's rows in the columns of ``wanted``, which has ids in its fields.

    ``constants`` are values of partitions, for columns that the file does not have;
    ``ids_by_name`` is the table's property for files whose columns have no ids.
    """
    parquet = pq.ParquetFile(
        stream,
        coerce_int96_timestamp_unit="us",  # which other writers may have
        # Otherwise all of the file is in memory before the first batch.
        pre_buffer=False,
        buffer_size=_BUFFER_BYTES,
    )
    there = _by_id(parquet.schema_arrow) or _by_name(parquet.schema_arrow, wanted, ids_by_name)
    ids = [_id_of(field) for field in wanted]
    names = [there[each].name for each in ids if each in there]
    for batch in parquet.iter_batches(_BATCH_ROWS, columns=names):
        columns = []
        for each, field in zip(ids, wanted, strict=True):
            if each in there:
                columns.append(projected(batch.column(there[each].name), there[each], field))
            elif field.name in constants:
                columns.append(pa.repeat(constants[field.name].cast(field.type), batch.num_rows))
            else:
                columns.append(pa.nulls(batch.num_rows, field.type))
        yield pa.RecordBatch.from_arrays(columns, schema=wanted)


def projected(values: pa.Array, have: pa.Field, want: pa.Field) -> pa.Array:
    """Returns values of a file's field as the table's field has them (pure)."""
    if _same(have.type, want.type):
        return values if values.type == want.type else values.cast(want.type)
    if pa.types.is_struct(want.type):
        there = {_id_of(each): (place, each) for place, each in enumerate(have.type)}
        children = []
        for field in want.type:
            place, own = there.get(_id_of(field), (-1, field))
            children.append(
                projected(values.field(place), own, field)
                if place >= 0
                else pa.nulls(len(values), field.type)
            )
        return pa.StructArray.from_arrays(children, fields=list(want.type), mask=values.is_null())
    # Into new memory, because Arrow takes no mask beside places that begin within some.
    places = pa.array(values.offsets.to_numpy().copy()) if pa.types.is_nested(want.type) else None
    if pa.types.is_list(want.type):
        items = projected(values.values, have.type.value_field, want.type.value_field)
        return pa.ListArray.from_arrays(places, items, type=want.type, mask=values.is_null())
    if pa.types.is_map(want.type):
        keys = projected(values.keys, have.type.key_field, want.type.key_field)
        items = projected(values.items, have.type.item_field, want.type.item_field)
        return pa.MapArray.from_arrays(places, keys, items, type=want.type, mask=values.is_null())
    return values.cast(want.type)


def _same(have: pa.DataType, want: pa.DataType) -> bool:
    """Tells whether two types have the same fields in the same order, and only the widths of
    numbers and the zones of times may differ."""
    if have.num_fields != want.num_fields:
        return False
    if not want.num_fields:
        return not pa.types.is_nested(have)
    pairs = zip(_fields(have), _fields(want), strict=True)
    return type(have) is type(want) and all(
        _id_of(own) == _id_of(other) and own.name == other.name and _same(own.type, other.type)
        for own, other in pairs
    )


def _fields(kind: pa.DataType) -> list[pa.Field]:
    if pa.types.is_map(kind):
        return [kind.key_field, kind.item_field]
    return [kind.field(place) for place in range(kind.num_fields)]


def _id_of(field: pa.Field) -> int | None:
    text = (field.metadata or {}).get(_ID)
    return None if text is None else int(text)


def _by_id(schema: pa.Schema) -> dict[int | None, pa.Field]:
    """Fields of a file by their ids; none where the file has none."""
    found = {_id_of(field): field for field in schema}
    return {} if None in found else found


def _by_name(
    schema: pa.Schema, wanted: pa.Schema, ids_by_name: Mapping[str, int]
) -> dict[int | None, pa.Field]:
    """Fields of a file without ids, which a migrated table has: those of the names that the columns
    had by then."""
    if not ids_by_name:
        raise WarehouseError(
            "A file has no ids for its columns, and the table has no schema.name-mapping.default "
            "to know them by. Set that property, as migrate_table of other writers does."
        )
    there = {ids_by_name[field.name]: field for field in schema if field.name in ids_by_name}
    found = {}
    for field in wanted:
        own = there.get(_id_of(field) or 0)
        if own is None:
            continue
        if not pa.types.is_nested(own.type):
            found[_id_of(field)] = own
        elif own.type == field.type:
            found[_id_of(field)] = own.with_type(field.type)
        else:
            raise WarehouseError(
                f"A file of the table has no ids for the fields of column {field.name}, and other "
                "fields than the table. Have its writer rewrite it, as rewrite_data_files does."
            )
    return found


def deleted_rows(file: DataFile, path: str, stream: pafs.NativeFile) -> npt.NDArray[np.int64]:
    """Reads the numbers of the rows of the data file at ``path`` that a file of deletes names."""
    positions = file.content == DataFileContent.POSITION_DELETES
    if not positions or file.file_format != FileFormat.PARQUET:
        raise WarehouseError(
            f"Rows of {path} are deleted by {file.file_path}, of a kind that loads cannot read "
            f"({file.content!s}, {file.file_format!s}). Have that writer rewrite its files."
        )
    found = pq.read_table(stream, columns=["file_path", "pos"])
    own = found.filter(pc.equal(found.column("file_path"), path))
    return np.asarray(own.column("pos").to_numpy(), dtype=np.int64)
