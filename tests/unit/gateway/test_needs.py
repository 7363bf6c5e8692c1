"""The rule of each node: a row for every function that makes a path."""

from __future__ import annotations

import inspect

import pytest

from spark_logbus.coordination import paths
from spark_logbus.gateway.needs import ROOTS, Act, Listing, Open, is_canonical, rule_of
from spark_logbus.model import TopicPartition
from spark_logbus.security.acls import Operation, Resource
from spark_logbus.zookeeper.access import thing_in

T1 = TopicPartition("t", 1)
GROUP = (Resource.GROUP, "g")
ALTER_CLUSTER = (Operation.ALTER, Resource.CLUSTER, "*")
DESCRIBE_CLUSTER = (Operation.DESCRIBE, Resource.CLUSTER, "*")
DESCRIBE_TOPIC = (Operation.DESCRIBE, Resource.TOPIC, "t")
READ_GROUP = (Operation.DESCRIBE, *GROUP)
WRITE_GROUP = (Operation.WRITE, *GROUP)
ALL_SUBJECTS = (Operation.WRITE, Resource.SUBJECT, "*")

#: By function: its arguments, and what reading, creating, setting and deleting the node takes.
ROWS: dict[str, tuple[tuple[object, ...], object, object, object, object]] = {
    "broker": ((3,), Open.KNOWN, Open.UNBOUND, Open.UNBOUND, ALTER_CLUSTER),
    "drained_broker": ((3,), DESCRIBE_CLUSTER, ALTER_CLUSTER, ALTER_CLUSTER, ALTER_CLUSTER),
    "topic": (("t",), DESCRIBE_TOPIC, ALTER_CLUSTER, ALTER_CLUSTER, ALTER_CLUSTER),
    "partitions": (("t",), DESCRIBE_TOPIC, ALTER_CLUSTER, ALTER_CLUSTER, ALTER_CLUSTER),
    "partition": ((T1,), DESCRIBE_TOPIC, ALTER_CLUSTER, ALTER_CLUSTER, ALTER_CLUSTER),
    "partition_state": ((T1,), DESCRIBE_TOPIC, ALTER_CLUSTER, ALTER_CLUSTER, ALTER_CLUSTER),
    "lock": (
        ("s3://a/b?c=%2F",),
        (Operation.DESCRIBE, Resource.LOCK, "s3://a/b?c=%2F"),
        *3 * ((Operation.WRITE, Resource.LOCK, "s3://a/b?c=%2F"),),
    ),
    "writer": (("w",), *4 * (Open.UNBOUND,)),
    "pending_write": (("w",), *4 * (Open.UNBOUND,)),
    "promise": ((3,), *4 * (Open.UNBOUND,)),
    "schema": ((3,), Open.KNOWN, ALL_SUBJECTS, ALL_SUBJECTS,
               (Operation.DELETE, Resource.SUBJECT, "*")),
    "schema_content": (("ab12",), Open.KNOWN, ALL_SUBJECTS, ALL_SUBJECTS,
                       (Operation.DELETE, Resource.SUBJECT, "*")),
    "subject": (
        ("s",),
        (Operation.DESCRIBE, Resource.SUBJECT, "s"),
        (Operation.WRITE, Resource.SUBJECT, "s"),
        (Operation.WRITE, Resource.SUBJECT, "s"),
        (Operation.DELETE, Resource.SUBJECT, "s"),
    ),
    "mirror": (
        ("m",),
        (Operation.DESCRIBE, Resource.MIRROR, "m"),
        (Operation.WRITE, Resource.MIRROR, "m"),
        (Operation.WRITE, Resource.MIRROR, "m"),
        (Operation.DELETE, Resource.MIRROR, "m"),
    ),
    "mirrored_topic": (
        ("m", "t"),
        (Operation.DESCRIBE, Resource.MIRROR, "m"),
        *3 * ((Operation.WRITE, Resource.MIRROR, "m"),),
    ),
    "user": (("anna@b.c",), *4 * (ALTER_CLUSTER,)),
    "acls": (("topic",), DESCRIBE_CLUSTER, *3 * (ALTER_CLUSTER,)),
    "group": (("g",), READ_GROUP, WRITE_GROUP, WRITE_GROUP, (Operation.DELETE, *GROUP)),
    "members": (("g",), READ_GROUP, *3 * (WRITE_GROUP,)),
    "member": (("g", "c"), READ_GROUP, *3 * (WRITE_GROUP,)),
    "assignment": (("g",), READ_GROUP, *3 * (WRITE_GROUP,)),
    "owners": (("g",), READ_GROUP, *3 * (WRITE_GROUP,)),
    "owner_fence": (("g", "t"), READ_GROUP, *3 * (WRITE_GROUP,)),
    "topic_owner": (("g", "t"), READ_GROUP, *3 * (WRITE_GROUP,)),
    "owner": (("g", T1), READ_GROUP, *3 * (WRITE_GROUP,)),
    "offsets": (("g",), READ_GROUP, *3 * (WRITE_GROUP,)),
    "topic_offsets": (("g", "t"), READ_GROUP, *3 * (WRITE_GROUP,)),
    "offset": (("g", T1), READ_GROUP, *3 * (WRITE_GROUP,)),
    "rewinds": (("g",), READ_GROUP, *3 * (WRITE_GROUP,)),
    "rewind": (("g", 4), READ_GROUP, *3 * (WRITE_GROUP,)),
}  # fmt: skip
#: Functions that parse names, and make no path.
OF_NAMES = {"number_of", "writer_of", "user_of", "lock_of"}


def path_functions() -> set[str]:
    found = inspect.getmembers(paths, inspect.isfunction)
    return {
        name for name, each in found if each.__module__ == paths.__name__ and name[0] != "_"
    } - OF_NAMES


def test_every_path_has_a_row() -> None:
    assert {*ROWS} == path_functions()


@pytest.mark.parametrize("name", sorted(ROWS))
def test_an_act_takes_what_the_row_says(name: str) -> None:
    arguments, *expected = ROWS[name]
    path = getattr(paths, name)(*arguments)
    acts = (Act.READ, Act.CREATE, Act.SET, Act.DELETE)
    assert [rule_of(each, path) for each in acts] == expected
    assert rule_of(Act.LIST, path) == expected[0]


def constants() -> dict[str, str]:
    return {
        name: value for name, value in vars(paths).items() if name.isupper() and name[0] != "_"
        and isinstance(value, str)
    }  # fmt: skip


@pytest.mark.parametrize("name", sorted(constants()))
def test_nodes_above_all_others_are_written_by_nobody(name: str) -> None:
    path = constants()[name]
    for act in (Act.CREATE, Act.SET, Act.DELETE):
        rule = rule_of(act, path)
        shared = {"SCHEMA_IDS", "SCHEMA_CONTENTS"}  # the last id, which is given with others
        if act is Act.SET and name in shared:
            assert rule == ALL_SUBJECTS
        elif act is Act.SET and name == "SCHEMA_SETTINGS":
            assert rule == ALTER_CLUSTER
        else:
            assert rule in (Open.UNBOUND, Open.NOBODY)


def test_keys_of_tokens_are_for_nobody() -> None:
    for act in Act:
        assert rule_of(act, paths.TOKEN_KEYS) is Open.NOBODY
        assert rule_of(act, f"{paths.TOKEN_KEYS}/x") is Open.NOBODY


def test_all_resources_of_a_kind_are_listed_as_far_as_they_may_be_described() -> None:
    listed = {
        paths.TOPICS: Resource.TOPIC,
        paths.CONSUMERS: Resource.GROUP,
        paths.SCHEMA_SUBJECTS: Resource.SUBJECT,
        paths.LOCKS: Resource.LOCK,
        paths.MIRRORS: Resource.MIRROR,
    }
    for path, resource in listed.items():
        rule = rule_of(Act.LIST, path)
        assert isinstance(rule, Listing)
        assert rule.resource is resource
        assert rule_of(Act.READ, path) is Open.KNOWN
    assert rule_of(Act.LIST, paths.DRAINED) == DESCRIBE_CLUSTER
    assert rule_of(Act.LIST, paths.USERS) == DESCRIBE_CLUSTER
    assert rule_of(Act.LIST, paths.BROKERS) is Open.KNOWN
    assert {*listed} < {*ROOTS}


@pytest.mark.parametrize(
    "path",
    [
        "/consumers/g*", "/consumers/g/a/b/c/d", "/locks/a/b", "/locks/%2f", "/locks/a%20%",
        "/locks/%FF", "/new", "/brokers/other", "/security", "/security/other", "/schemas/ids/1/2",
        "/consumersx/g", "/transactions", "/mirrors/m/t/x", "/schemas/subjects/a b",
    ],
)  # fmt: skip
def test_nodes_that_are_not_known_are_closed(path: str) -> None:
    for act in (Act.READ, Act.CREATE, Act.SET, Act.DELETE):
        assert rule_of(act, path) is Open.UNBOUND


@pytest.mark.parametrize("path", ["/consumers/g", "/locks/l", "/schemas/subjects/s", "/mirrors/m"])
def test_a_number_at_the_end_of_a_name_makes_no_other_resource(path: str) -> None:
    assert rule_of(Act.CREATE, path, numbered=True) is Open.UNBOUND
    assert rule_of(Act.CREATE, "/consumers/g/x-", numbered=True) == WRITE_GROUP


@pytest.mark.parametrize(
    "path",
    ["", "a", "//", "/a/", "/a//b", "/./a", "/a/..", "/a/\0", "/a\n", "/a/\x7f", "/a/\ud800",
     "/a\u200b/b", "/" + "a" * 3_000],
)  # fmt: skip
def test_paths_that_could_mean_another_node_are_none(path: str) -> None:
    assert not is_canonical(path)


def test_paths_of_logbus_are_canonical() -> None:
    for name, (arguments, *_) in ROWS.items():
        assert is_canonical(getattr(paths, name)(*arguments)), name
    assert is_canonical("/")


@pytest.mark.parametrize(
    "path",
    [
        paths.topic("t"),
        paths.offsets("g"),
        paths.lock("s3a://bucket/a b"),
        paths.mirror("m"),
        paths.subject("t-value"),
        paths.USERS,
        paths.DRAINED,
    ],
)
def test_who_is_refused_is_told_the_thing_whose_rules_were_asked(path: str) -> None:
    _, resource, name = rule_of(Act.READ, path)  # type: ignore[misc]
    thing = "the cluster" if resource is Resource.CLUSTER else f"the {resource.value} {name}"
    assert thing_in(f"read {path} and 3 more nodes") == thing
    assert thing_in(f"do it at {path}/x: more") == thing
