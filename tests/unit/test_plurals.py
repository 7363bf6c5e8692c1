"""Numbers in messages."""

from __future__ import annotations

from spark_logbus.plurals import first_of, plural


def test_one_is_singular_and_every_other_number_plural() -> None:
    told = [plural(count, "record") for count in (0, 1, 2, 1_000)]
    assert told == ["0 records", "1 record", "2 records", "1,000 records"]
    assert plural(1, "file is", "files are") == "1 file is"
    assert plural(-1, "file is", "files are") == "-1 files are"


def test_the_first_of_some_names_tells_of_others() -> None:
    assert (first_of(["a"]), first_of(["a", "b"])) == ("a", "a and others")
