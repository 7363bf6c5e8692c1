"""Avro datums to columns and back, beside a loop of fastavro's over the records.

The loop makes a dict of each record, or a datum of each dict: nobody's columns yet, so it is what
any way over Python's objects costs at least. The decoder makes Arrow columns, the encoder takes
them. Where some fields are chosen, the decoder skips the others, and a resolver makes the reader's
of them; the loop has to read all. All run on one core; the loop does a part of the records, for it
takes that long.
"""

from __future__ import annotations

import argparse
import io
import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, Final

import fastavro
import pyarrow as pa

from avro_columns.decode.decoder import Decoder
from avro_columns.decode.evolution import Resolver
from avro_columns.encode.encoder import Encoder
from avro_columns.values.rows import columns_of
from bench.kit.comparing import Comparing
from bench.kit.program import Opening, Program, Row, Whole
from bench.kit.result import Rounds
from bench.kit.rounds import RATE, Contender, in_turn, timed

LOOP: Final = "fastavro's loop"
COLUMNS: Final = "by column"
LOOPED_PART = 10  # one in so many records is for fastavro's loop
DISTINCT = 5_000  # records that are made, and repeated
BASE_US = 1_700_000_000_000_000

Record = dict[str, Any]


def _record(name: str, fields: dict[str, Any]) -> dict[str, Any]:
    return {
        "type": "record",
        "name": name,
        "fields": [{"name": key, "type": kind} for key, kind in fields.items()],
    }


TIMESTAMP = {"type": "long", "logicalType": "timestamp-micros"}
SMALL = _record(
    "click",
    {
        "id": "long",
        "user": "string",
        "price": "double",
        "at": TIMESTAMP,
        "position": ["null", "int"],
    },
)
_DELAYS = ("dep_time", "dep_delay", "arr_time", "arr_delay", "air_time")
FLIGHT = _record(
    "flight",
    {
        **dict.fromkeys(("year", "month", "day", "sched_dep_time", "sched_arr_time"), "int"),
        **{key: ["null", "double"] for key in _DELAYS},
        "carrier": "string",
        "flight": "int",
        "tailnum": ["null", "string"],
        **dict.fromkeys(("origin", "dest"), "string"),
        **dict.fromkeys(("distance", "hour", "minute"), "double"),
        "time_hour": TIMESTAMP,
    },
)
ITEM = _record(
    "item", {"sku": "string", "count": "int", "price": "double", "note": ["null", "string"]}
)
NESTED = _record(
    "order",
    {
        "id": "long",
        "state": {"type": "enum", "name": "state", "symbols": ["NEW", "PAID", "SENT"]},
        "customer": _record("customer", {"name": "string", "mail": ["null", "string"]}),
        "items": {"type": "array", "items": ITEM},
        "tags": {"type": "array", "items": "string"},
        "attributes": {"type": "map", "values": "string"},
    },
)


def small(dice: random.Random, number: int) -> Record:
    position = None if number % 4 == 0 else dice.randrange(100)
    return {
        "id": number,
        "user": f"user{dice.randrange(10_000)}",
        "price": dice.random(),
        "at": BASE_US + number * 1000,
        "position": position,
    }


def flight(dice: random.Random, number: int) -> Record:
    late = dict.fromkeys(_DELAYS) if number % 40 == 0 else {
        name: float(dice.randrange(-20, 1500)) for name in _DELAYS
    }  # fmt: skip
    return {
        "year": 2013,
        "month": dice.randrange(1, 13),
        "day": dice.randrange(1, 29),
        "sched_dep_time": dice.randrange(2400),
        "sched_arr_time": dice.randrange(2400),
        **late,
        "carrier": dice.choice(["UA", "AA", "B6", "DL"]),
        "flight": dice.randrange(6000),
        "tailnum": None if number % 100 == 0 else f"N{dice.randrange(100_000)}",
        "origin": dice.choice(["EWR", "LGA", "JFK"]),
        "dest": dice.choice(["IAH", "MIA", "BQN", "ATL"]),
        "distance": float(dice.randrange(3000)),
        "hour": float(dice.randrange(24)),
        "minute": float(dice.randrange(60)),
        "time_hour": BASE_US + number * 3_600_000_000,
    }


def order(dice: random.Random, number: int) -> Record:
    items = [
        {
            "sku": f"sku-{dice.randrange(10_000)}",
            "count": dice.randrange(1, 9),
            "price": dice.random(),
            "note": None if dice.random() < 0.8 else "as a present",
        }
        for _ in range(dice.randrange(1, 6))
    ]
    return {
        "id": number,
        "state": dice.choice(["NEW", "PAID", "SENT"]),
        "customer": {"name": f"name{number}", "mail": f"{number}@example.org"},
        "items": items,
        "tags": [f"tag{dice.randrange(50)}" for _ in range(dice.randrange(4))],
        "attributes": {f"key{place}": "value" for place in range(dice.randrange(3))},
    }


@dataclass(frozen=True, eq=False)
class Shape:
    """Schema, and records of it at random."""

    title: str
    schema: dict[str, Any]
    row: Callable[[random.Random, int], Record]
    chosen: tuple[str, ...] = ()
    """Fields that are decoded alone, too."""


SHAPES: Final = {
    "small": Shape("5 fields", SMALL, small),
    "flights": Shape("19 columns of flights", FLIGHT, flight, ("carrier", "arr_delay", "distance")),
    "orders": Shape("nested orders", NESTED, order),
}


class Work:
    """Records of one shape in the forms that both ways start from."""

    def __init__(self, shape: Shape, records: int) -> None:
        dice = random.Random(1)
        rows = [shape.row(dice, number) for number in range(min(records, DISTINCT))]
        # Plain numbers are written, not datetimes: that is the faster way for the loop.
        plain = {"fields": [
            {**one, "type": "long" if one["type"] == TIMESTAMP else one["type"]}
            for one in shape.schema["fields"]
        ]}  # fmt: skip
        self._parsed = fastavro.parse_schema({**shape.schema, **plain})
        self._decoder, self._encoder = Decoder(shape.schema), Encoder(shape.schema)
        self._resolver = Resolver(shape.schema, shape.schema, fields=shape.chosen)
        self._chooser = Decoder(shape.schema, fields=self._resolver.writer_fields)
        repeats = -(-records // len(rows))
        column = columns_of(rows, shape.schema)
        self.columns = pa.concat_arrays([column] * repeats).slice(0, records)
        self.datums = self._encoder.encode(self.columns)
        looped = max(records // LOOPED_PART, 1)
        self._rows = (rows * repeats)[:looped]
        self._looped = self.datums.slice(0, looped).to_pylist()
        if self._looped != self._written_by_loop():
            raise SystemExit(f"The datums of {shape.title} differ from fastavro's.")

    def decode(self) -> None:
        self._decoder.decode(self.datums).checked()

    def decode_chosen(self) -> None:
        self._resolver.resolve(self._chooser.decode(self.datums).checked()).checked()

    def encode(self) -> None:
        self._encoder.encode(self.columns)

    def read_by_loop(self) -> None:
        parsed = self._parsed
        for datum in self._looped:
            fastavro.schemaless_reader(io.BytesIO(datum), parsed, None)

    def write_by_loop(self) -> None:
        self._written_by_loop()

    def _written_by_loop(self) -> list[bytes]:
        written = []
        for row in self._rows:
            buffer = io.BytesIO()
            fastavro.schemaless_writer(buffer, self._parsed, row)
            written.append(buffer.getvalue())
        return written


@dataclass(frozen=True)
class Bench:
    """Sizes that all rows share."""

    records: int
    rounds: int

    def in_turn(self, by_column: dict[str, Callable[[], None]], loop: Callable[[], None]) -> Rounds:
        """Times each way; the loop does a part of the records."""
        looped = max(self.records // LOOPED_PART, 1)
        contenders = [
            Contender(LOOP, lambda: timed(loop, looped)),
            *(
                Contender(name, partial(timed, work, self.records))
                for name, work in by_column.items()
            ),
        ]
        return in_turn(contenders, lambda contender, _: contender.measure(), rounds=self.rounds)


@cache
def _work_of(shape: Shape, records: int) -> Work:
    return Work(shape, records)


def decode(bench: Bench, *, shape: Shape) -> Rounds:
    """Decodes datums, all fields and those that the shape chooses."""
    work = _work_of(shape, bench.records)
    by_column = {COLUMNS: work.decode}
    if shape.chosen:
        by_column[f"{COLUMNS}, {len(shape.chosen)} fields"] = work.decode_chosen
    return bench.in_turn(by_column, work.read_by_loop)


def encode(bench: Bench, *, shape: Shape) -> Rounds:
    """Encodes columns as datums."""
    work = _work_of(shape, bench.records)
    return bench.in_turn({COLUMNS: work.encode}, work.write_by_loop)


ROWS: Final[dict[str, Row[Bench]]] = {
    f"{name}-{does.__name__}": Whole(
        f"{does.__name__}, {shape.title}", "records/s", partial(does, shape=shape)
    )
    for name, shape in SHAPES.items()
    for does in (decode, encode)
}


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Adds the number of records."""
    parser.add_argument("--records", type=int, default=200_000)


def open_bench(opening: Opening) -> Bench:
    """Has all run on one core."""
    pa.set_cpu_count(1)
    return Bench(opening.args.records, opening.args.rounds)


PROGRAM: Final = Program(
    name="avro",
    description=__doc__,
    rows=ROWS,
    open_bench=open_bench,
    comparing=Comparing({RATE: ""}, own=f"{COLUMNS}.*", rates=[RATE]),
    add_flags=add_flags,
    packages=("pyarrow", "fastavro"),
)
