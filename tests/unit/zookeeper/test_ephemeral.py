"""The plan that makes an ephemeral node ours, and the wait for its owner."""

from __future__ import annotations

import pytest

from spark_logbus.zookeeper.ephemeral import acquiring, expiry_ms
from spark_logbus.zookeeper.nodes import Node
from spark_logbus.zookeeper.transactions import Create, Delete, Operation

OURS, OTHER = 7, 8
CREATE = Create("/p", b"mine", ephemeral=True)
DELETE = Delete("/p", 3)


def node(data: bytes, owner: int) -> Node:
    return Node(content=data, version=3, owner=owner, changed=(1, 2))


@pytest.mark.parametrize("abandoned", [False, True])
@pytest.mark.parametrize(
    ("found", "plan", "plan_if_abandoned"),
    [
        pytest.param(None, [CREATE], [CREATE], id="free"),
        pytest.param(node(b"mine", OURS), [], [], id="ours, the reply was lost"),
        pytest.param(
            node(b"mine", OTHER), [DELETE, CREATE], [DELETE, CREATE], id="of our last session"
        ),
        pytest.param(node(b"theirs", OTHER), None, [DELETE, CREATE], id="of another process"),
        pytest.param(node(b"theirs", OURS), None, [DELETE, CREATE], id="another of our session"),
    ],
)
def test_each_node_has_its_plan(
    found: Node | None,
    plan: list[Operation] | None,
    plan_if_abandoned: list[Operation],
    *,
    abandoned: bool,
) -> None:
    made = acquiring("/p", found, b"mine", session_id=OURS, abandoned=abandoned)
    assert made == (plan_if_abandoned if abandoned else plan)


def test_the_longest_session_and_a_margin_are_waited_for() -> None:
    assert expiry_ms(10_000, 4_000) == 15_000
