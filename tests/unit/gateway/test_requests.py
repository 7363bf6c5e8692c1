"""Messages as kazoo writes and reads them, and messages that nobody writes."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kazoo.protocol import serialization as kazoo
from kazoo.security import CREATOR_ALL_ACL, OPEN_ACL_UNSAFE, make_acl

from spark_logbus.errors import ProtocolError
from spark_logbus.gateway import jute, passwords, requests
from spark_logbus.gateway.needs import Act
from spark_logbus.gateway.requests import Connect, Connected, Kind, Touch

OURS = [(31, "digest", "logbus:abc")]
ACL = requests.acl_list(OURS)
OPEN = OPEN_ACL_UNSAFE


def sent(request: Any, xid: int = 5) -> bytes:
    """A request as kazoo sends it, without its length."""
    return struct.pack("!ii", xid, request.type) + bytes(request.serialize())


def parsed(request: Any, xid: int = 5) -> requests.Request:
    return requests.parse(sent(request, xid), acl=ACL)


@pytest.mark.parametrize(
    ("request_of_kazoo", "touches"),
    [
        (kazoo.Exists("/a", None), [Touch(Act.READ, "/a")]),
        (kazoo.Exists("/a", print), [Touch(Act.READ, "/a")]),
        (kazoo.GetData("/a", None), [Touch(Act.READ, "/a")]),
        (kazoo.GetChildren("/a", None), [Touch(Act.LIST, "/a")]),
        (kazoo.GetChildren2("/a", None), [Touch(Act.LIST, "/a")]),
        (kazoo.SetData("/a", b"x", 3), [Touch(Act.SET, "/a")]),
        (kazoo.SetData("/a", None, 3), [Touch(Act.SET, "/a")]),
        (kazoo.Delete("/a", 3), [Touch(Act.DELETE, "/a")]),
        (kazoo.Close(), []),
    ],
)
def test_requests_are_passed_on_as_they_are(request_of_kazoo: Any, touches: list[Touch]) -> None:
    found = parsed(request_of_kazoo)
    assert (found.xid, found.touches, found.message) == (5, touches, sent(request_of_kazoo))


@pytest.mark.parametrize("flags", [0, 1, 2, 3])
@pytest.mark.parametrize("make", [kazoo.Create, kazoo.Create2])
def test_nodes_are_made_with_the_cluster_s_access_list(make: Any, flags: int) -> None:
    given_acl = [*OPEN, make_acl("digest", "me:mine", all=True)]
    found = parsed(make("/a", b"data", given_acl, flags))
    assert found.touches == [Touch(Act.CREATE, "/a", numbered=flags >= 2)]
    ours = [make_acl("digest", "logbus:abc", all=True)]
    assert found.message == sent(make("/a", b"data", ours, flags))


def test_a_transaction_is_all_that_it_does() -> None:
    operations = [
        kazoo.Create("/a", b"x", CREATOR_ALL_ACL, 0),
        kazoo.SetData("/b", b"y", -1),
        kazoo.Delete("/c", 2),
        kazoo.CheckVersion("/d", 7),
    ]
    found = parsed(kazoo.Transaction(operations))
    assert found.touches == [
        Touch(Act.CREATE, "/a"), Touch(Act.SET, "/b"), Touch(Act.DELETE, "/c"),
        Touch(Act.READ, "/d"),
    ]  # fmt: skip
    ours = [make_acl("digest", "logbus:abc", all=True)]
    operations[0] = kazoo.Create("/a", b"x", ours, 0)
    assert found.message == sent(kazoo.Transaction(operations))


@pytest.mark.parametrize(
    "request_of_kazoo",
    [
        kazoo.GetACL("/a"),
        kazoo.SetACL("/a", OPEN, -1),
        kazoo.Reconfig("a", "b", "c", -1),
        kazoo.CheckVersion("/a", 1),
        kazoo.Create("/a", b"", OPEN, 4),  # a container
        kazoo.Create("/a", b"", OPEN, 5),  # for a time
        kazoo.Transaction([kazoo.Create("/a", b"", OPEN, 4)]),
        kazoo.Transaction([kazoo.SetACL("/a", OPEN, -1)]),
        kazoo.Transaction([kazoo.Delete("/a", 1), kazoo.GetACL("/a")]),
    ],
)
def test_requests_that_clients_of_logbus_do_not_send_are_refused(request_of_kazoo: Any) -> None:
    assert parsed(request_of_kazoo).touches is None


@pytest.mark.parametrize("number", [19, 21, 101, 105, 106, -10, 0, 99])
def test_unknown_kinds_are_refused(number: int) -> None:
    message = struct.pack("!ii", 9, number) + b"whatever"
    assert requests.parse(message, acl=ACL).touches is None


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"\0\0\0\5",
        struct.pack("!ii", -1, 3) + jute.text("/a") + b"\0",  # a notification's number
        struct.pack("!ii", 0, 3) + jute.text("/a") + b"\0",
        struct.pack("!ii", 5, 11),  # a ping with a number of its own
        struct.pack("!ii", -2, 11) + b"x",
        sent(kazoo.Exists("/a", None)) + b"\0",
        sent(kazoo.Exists("/a", None))[:-1],
        sent(kazoo.Exists("/a", None))[:-1] + b"\7",
        struct.pack("!ii", 5, 3) + struct.pack("!i", -2) + b"\0",
        struct.pack("!ii", 5, 3) + jute.buffer(b"/\xff") + b"\0",
        struct.pack("!ii", 5, 1) + jute.text("/a") + jute.buffer(b"") + struct.pack("!i", 1 << 30),
        sent(kazoo.Transaction([kazoo.Delete("/a", 1)])) + b"x",
        sent(kazoo.Transaction([kazoo.Delete("/a", 1)]))[:-9],
        sent(kazoo.Transaction([kazoo.Delete("/a", 1)] * (requests.MAX_OPERATIONS + 1))),
    ],
)
def test_what_no_request_is_ends_the_connection(message: bytes) -> None:
    with pytest.raises(ProtocolError):
        requests.parse(message, acl=ACL)


@given(st.binary(max_size=200), st.sampled_from([*Kind, 7, 101]))
def test_hostile_messages_raise_nothing_else(tail: bytes, kind: int) -> None:
    for message in (tail, struct.pack("!ii", 5, kind) + tail):
        for parse in (
            lambda each: requests.parse(each, acl=ACL),
            requests.parse_connect,
            requests.parse_connected,
            requests.parse_auth,
            requests.watched_path,
            lambda each: requests.filtered(each, bool),
        ):
            try:
                parse(message)
            except ProtocolError:
                continue


@given(st.data())
def test_a_changed_byte_is_noticed_or_is_another_request(data: st.DataObject) -> None:
    message = bytearray(sent(kazoo.Create("/consumers/g", b"data", OPEN, 0)))
    at = data.draw(st.integers(0, len(message) - 1))
    message[at] = data.draw(st.integers(0, 255))
    try:
        found = requests.parse(bytes(message), acl=ACL)
    except ProtocolError:
        return
    # What is passed on is what was looked at.
    again = requests.parse(found.message, acl=ACL)
    assert (again.touches, again.message) == (found.touches, found.message)


def test_sessions_are_asked_for_as_kazoo_does() -> None:
    asked = kazoo.Connect(0, 17, 10_000, 99, b"p" * 16, True)
    found = requests.parse_connect(bytes(asked.serialize()))
    assert found == Connect(0, 17, 10_000, 99, b"p" * 16)
    writable = kazoo.Connect(0, 17, 10_000, 99, b"p" * 16, False)
    assert found.message() == bytes(writable.serialize())
    answer = Connected(0, 4_000, 99, b"q" * 48)
    assert requests.parse_connected(answer.message()) == answer
    understood, _ = kazoo.Connect.deserialize(answer.message(), 0)
    assert (understood.time_out, understood.session_id, understood.passwd) == (4_000, 99, b"q" * 48)
    assert "qq" not in repr(answer)
    assert "pp" not in repr(found)


@pytest.mark.parametrize(("version", "timeout_ms"), [(1, 1_000), (0, 0), (0, -5)])
def test_sessions_that_nobody_asks_for_are_refused(version: int, timeout_ms: int) -> None:
    asked = kazoo.Connect(version, 0, timeout_ms, 0, b"", False)
    with pytest.raises(ProtocolError):
        requests.parse_connect(bytes(asked.serialize()))


def test_logins_are_read_as_kazoo_writes_them() -> None:
    message = struct.pack("!ii", -4, 100) + kazoo.Auth(0, "plain", "anna:secret").serialize()
    assert requests.parse_auth(message) == ("plain", b"anna:secret")
    assert requests.login("plain", "anna:secret") == message


def test_listings_show_what_may_be_seen() -> None:
    head = struct.pack("!iqi", 5, 70, 0)
    names = ["a", "secret", "b"]
    listing = head + struct.pack("!i", 3) + b"".join(map(jute.text, names)) + b"\1" * 80
    shown = requests.filtered(listing, lambda name: name != "secret")
    children, stat = kazoo.GetChildren2.deserialize(shown, 16)
    assert (children, shown[:16], shown[-80:]) == (["a", "b"], head, b"\1" * 80)
    assert stat.czxid
    failed = struct.pack("!iqi", 5, 70, -101)
    assert requests.filtered(failed, lambda _: False) == failed


def test_passwords_of_sessions_are_sealed_for_one_session() -> None:
    secret, password = b"s" * 32, b"p" * 16
    shown = passwords.sealed(7, password, secret)
    assert passwords.opened(7, shown, secret) == password
    assert passwords.opened(8, shown, secret) is None
    assert passwords.opened(7, shown, b"t" * 32) is None
    assert passwords.opened(7, password, secret) is None
    assert passwords.opened(7, b"", secret) is None
    assert passwords.opened(7, b"x" + shown[1:], secret) is None
