"""Addresses with passwords in them."""

from __future__ import annotations

import pytest

from spark_logbus.errors import InvalidOptionError
from spark_logbus.security.addresses import holds_password
from spark_logbus.spark.options import SparkOptions


@pytest.mark.parametrize(
    "text",
    [
        "https://anna:hunter22@registry:8081",
        "https://anna:1234@registry/subjects",
        "s3a://KEY:sec/ret@bucket/x",
        "http://:hunter22@host",
        "a,https://anna:hunter22@b",
    ],
)
def test_an_address_with_a_password_is_seen(text: str) -> None:
    assert holds_password(text)
    options = SparkOptions({"Path": text})
    with pytest.raises(InvalidOptionError, match=r"Option path has an address .* profile") as met:
        options.refuse_unknown(["path"], foreign={}, of="sink")
    assert text not in str(met.value)


@pytest.mark.parametrize(
    "text",
    ["", "zk1:2181,zk2:2181/logbus", "hdfs://nn:8020/a@b", "https://anna@host/a:b", "s3a://bucket/a:b@c",
     "a:b@c", "https://host:8081"],
)  # fmt: skip
def test_other_addresses_are_left_alone(text: str) -> None:
    assert not holds_password(text)
    SparkOptions({"path": text}).refuse_unknown(["path"], foreign={}, of="sink")
