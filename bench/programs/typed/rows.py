"""The names of rows and contenders, and the ratios that are wanted. Pure."""

from __future__ import annotations

from typing import Final

from bench.kit.comparing import Compared, Comparing
from bench.kit.result import LOGBUS

TYPED: Final = f"{LOGBUS}, columns"
LOGBUS_AVRO: Final = f"{LOGBUS}, avro"
READY_MADE: Final = "ready-made Arrow"
FROM_JSON, FROM_AVRO = f"{LOGBUS}, from_json", f"{LOGBUS}, from_avro"

ALL_AND_OWN: Final = "19 columns and the records' own"
ALL: Final = "19 columns"
FEW_OF_ALL: Final = "3 of 19 columns"
MEANS: Final = "means of two by the third"

CEILING_GOAL: Final = 0.85  # of ready-made Arrow


def beside_json(what: str) -> str:
    return f"beside JSON, {what}"


def beside_from_avro(what: str) -> str:
    return f"beside Spark's from_avro, {what}"


def beside_kafka(values: str) -> str:
    return f"beside Kafka's source with {values}, {FEW_OF_ALL}"


COMPARED: Final = Comparing(
    {"seconds": "", "bytes": ""},
    own=f"{LOGBUS}|{TYPED}|{LOGBUS_AVRO}|3 of them|columns, .*|avro, .*",
    goals={
        Compared("a", ALL_AND_OWN, LOGBUS, READY_MADE): CEILING_GOAL,
        Compared("a", ALL, LOGBUS, READY_MADE): CEILING_GOAL,
        Compared("b", FEW_OF_ALL, LOGBUS, READY_MADE): CEILING_GOAL,
        Compared("c", beside_json(ALL), TYPED, FROM_JSON): 4,
        Compared("c", beside_json(FEW_OF_ALL), TYPED, FROM_JSON): 9,
        Compared("c", beside_json(MEANS), TYPED, FROM_JSON): 6,
        Compared("d", beside_from_avro(ALL), TYPED, FROM_AVRO): 3,
        Compared("d", beside_from_avro(FEW_OF_ALL), TYPED, FROM_AVRO): 3,
        Compared("k", beside_kafka("JSON"), TYPED, "Kafka, from_json"): 12,
    },
)
