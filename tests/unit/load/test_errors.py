"""What is left of an error that came through the JVM."""

from __future__ import annotations

import pytest

from spark_logbus.errors import DataLossError
from spark_logbus.load import WarehouseError
from spark_logbus.load.errors import reason, translated


class FakeJavaError:
    def __init__(self, text: str) -> None:
        self._text = text

    def toString(self) -> str:
        return self._text


class FakeBridgeError(Exception):
    """Error like py4j's: the Java exception stands in an attribute."""

    def __init__(self, text: str) -> None:
        super().__init__("An error occurred while calling o1.x.\n: " + text)
        self.java_exception = FakeJavaError(text)


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (ValueError("plain"), "plain"),
        (ValueError(""), "ValueError"),
        (
            FakeBridgeError("java.io.IOException: disk full\n\tat org.apache.X(Y.java)"),
            "java.io.IOException: disk full",
        ),
        (
            FakeBridgeError(
                "org.apache.spark.SparkException: Job aborted\n\tat Traceback (most recent):\n"
                "spark_logbus.errors.DataLossError: t-0: 2 records are gone.\n\tat X"
            ),
            "t-0: 2 records are gone.",
        ),
    ],
)
def test_reason(error: Exception, expected: str) -> None:
    assert reason(error) == expected


def test_errors_of_ours_pass_untouched() -> None:
    with pytest.raises(DataLossError, match="gone"), translated("do it"):
        raise DataLossError("gone")


def test_others_are_named_with_what_was_tried() -> None:
    with (
        pytest.raises(WarehouseError, match=r"Cannot read x: java.io.IOException: no"),
        translated("read x"),
    ):
        raise FakeBridgeError("java.io.IOException: no")
