"""Transactions are cut into parts."""

from __future__ import annotations

from unittest.mock import patch

from hypothesis import given
from hypothesis import strategies as st
from kazoo.client import KazooClient
from kazoo.protocol.serialization import Transaction

from spark_logbus.zookeeper.transactions import (
    Check,
    Create,
    Delete,
    Operation,
    SetData,
    in_parts,
    size_of,
)

operations = st.one_of(
    st.builds(Create, path=st.just("/a"), data=st.binary(max_size=100)),
    st.builds(SetData, path=st.just("/b"), data=st.binary(max_size=100)),
    st.builds(Delete, path=st.just("/c")),
)


@given(wanted=st.lists(operations, max_size=30))
def test_parts_fit_and_hold_everything_in_order(wanted: list[Operation]) -> None:
    check = Check("/fence", 3)
    with patch("spark_logbus.zookeeper.transactions.MAX_TRANSACTION_BYTES", 400):
        parts = list(in_parts(wanted, each_with=[check]))
    assert all(size_of(part) <= 400 for part in parts)
    assert all(part[0] == check for part in parts)
    assert [operation for part in parts for operation in part[1:]] == wanted


def test_nothing_to_do_is_no_transaction() -> None:
    assert list(in_parts([], each_with=[Check("/fence", 3)])) == []


def test_the_size_of_a_transaction_is_not_underrated() -> None:
    wanted: list[Operation] = [
        Check("/check", 3),
        Create("/create", b"data", ephemeral=True),
        SetData("/set", b"data", 4),
        Delete("/delete", 5),
    ]
    transaction = KazooClient().transaction()
    transaction.check("/check", 3)
    transaction.create("/create", b"data", ephemeral=True)
    transaction.set_data("/set", b"data", 4)
    transaction.delete("/delete", 5)
    for operation, request in zip(wanted, transaction.operations, strict=True):
        end = len(Transaction([]).serialize())
        assert len(Transaction([request]).serialize()) - end <= size_of([operation])
