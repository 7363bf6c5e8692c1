"""The names of rows and contenders, and the ratios that are wanted. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from bench.result import LOGBUS

TYPED: Final = f"{LOGBUS}, columns"
LOGBUS_AVRO: Final = f"{LOGBUS}, avro"
READY_MADE: Final = "ready-made Arrow"
FROM_JSON, FROM_AVRO = f"{LOGBUS}, from_json", f"{LOGBUS}, from_avro"

ALL_AND_OWN: Final = "19 columns and the records' own"
ALL: Final = "19 columns"
FEW_OF_ALL: Final = "3 of 19 columns"
MEANS: Final = "means of two by the third"

CEILING_GOAL: Final = 0.85  # of ready-made Arrow


def row_of(letter: str, title: str) -> str:
    return f"{letter}, {title}"


def of_letter(row: str) -> tuple[str, str]:
    """A measure's letter, and what of it the row is."""
    letter, _, title = row.partition(", ")
    return letter, title


def beside_json(what: str) -> str:
    return f"beside JSON, {what}"


def beside_from_avro(what: str) -> str:
    return f"beside Spark's from_avro, {what}"


def beside_kafka(values: str) -> str:
    return f"beside Kafka's source with {values}, {FEW_OF_ALL}"


#: By row, and whom logbus is beside.
GOALS: Final[Mapping[tuple[str, str], float]] = {
    (row_of("a", ALL_AND_OWN), READY_MADE): CEILING_GOAL,
    (row_of("a", ALL), READY_MADE): CEILING_GOAL,
    (row_of("b", FEW_OF_ALL), READY_MADE): CEILING_GOAL,
    (row_of("c", beside_json(ALL)), FROM_JSON): 4,
    (row_of("c", beside_json(FEW_OF_ALL)), FROM_JSON): 9,
    (row_of("c", beside_json(MEANS)), FROM_JSON): 6,
    (row_of("d", beside_from_avro(ALL)), FROM_AVRO): 3,
    (row_of("d", beside_from_avro(FEW_OF_ALL)), FROM_AVRO): 3,
    (row_of("k", beside_kafka("JSON")), "Kafka, from_json"): 12,
}
