"""Names of ``pyarrow.compute``, looked up late."""

from __future__ import annotations

import pyarrow.compute
import pytest

from spark_logbus.record import compute


@pytest.mark.parametrize("name", ["TakeOptions", "call_function", "get_function", "fill_null"])
def test_names_are_those_of_arrow(name: str) -> None:
    assert getattr(compute, name) is getattr(pyarrow.compute, name)


def test_a_name_that_arrow_does_not_have() -> None:
    with pytest.raises(AttributeError, match="no_such_function"):
        getattr(compute, "no_such_function")  # noqa: B009 - it is looked up late
