"""Requests that no client sends, and a ZooKeeper that goes in the middle of them."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from spark_logbus.zookeeper import SessionState
from tests.helpers import wait_until
from tests.integration.schemas.registry.texts import INT, LONG, record
from tests.servers.registry import DEADLINE_S, V1, Answer, Rest, serving
from tests.servers.zookeeper import Proxy

VERSIONS = "/subjects/a/versions"


@pytest.fixture
def rest(chroot: str) -> Iterator[Rest]:
    with serving(chroot) as server:
        yield Rest(server)


def exchange(rest: Rest, sent: bytes) -> bytes:
    """Returns all that is answered to these bytes; raises where the connection is broken off."""
    with socket.create_connection(rest.address, timeout=DEADLINE_S) as sock:
        sock.sendall(sent)
        return b"".join(iter(lambda: sock.recv(1 << 16), b""))


def request(method: str, path: str, body: bytes = b"", *head: str) -> bytes:
    lines = (f"{method} {path} HTTP/1.1", f"Content-Length: {len(body)}", *head, "", "")
    return "\r\n".join(lines).encode() + body


def answer_to(rest: Rest, sent: bytes) -> Answer:
    head, _, body = exchange(rest, sent).partition(b"\r\n\r\n")
    status, *lines = head.decode().split("\r\n")
    headers = dict(line.lower().split(": ", 1) for line in lines)
    assert int(headers["content-length"]) == len(body)
    return Answer(int(status.split()[1]), json.loads(body), headers)


# None: answered as if nothing were wrong.
BODIES: list[tuple[bytes, int, int | None]] = [
    (b'{"schema": "\\ud800"}', 422, 42201),
    (b'{"schema": "{\\"type\\": \\"int\\", \\"doc\\": \\"\\\\ud800\\"}"}', 422, 42201),
    (b'{"schema": "\\"int\\"", "references": [{"name": "\\ud800", "subject": "a", "version": 1}]}',
     422, 42201),
    (b'{"schema": "\\"int\\"", "references": [{"name": "x", "subject": "\\ud800", "version": 1}]}',
     422, 42208),
    (b'{"schema": "\\"int\\"", "references": [{"name": "x", "subject": "a", "version": 1e999}]}',
     422, 42202),
    (b'{"schema": "\\"int\\"", "references": [' + b"1," * 200 + b"1]}", 422, 42201),
    (b'{"schema": "\\"int\\"", "id": ' + b"9" * 6_000 + b"}", 400, 400),
    (b'{"schema": "\\"int\\"", "id": ' + b"9" * 30 + b"}", 422, 42205),
    (b'{"schema": "\\"int\\"", "id": NaN}', 422, 422),
    (b'{"schema": "\\"long\\"", "version": ' + b"9" * 30 + b"}", 422, 42201),
    (b'{"schema": "\\"int\\"", "schemaType": ["AVRO"]}', 422, 42201),
    (b'{"schema": "\xff"}', 400, 400),
    (b'{"schema": ' * 50_000, 400, 400),
    (json.dumps({"schema": "[" * 300_000}).encode(), 422, 42201),
    (json.dumps({"schema": "[" * 200 + INT + "]" * 200}).encode(), 422, 42201),
    (json.dumps({"schema": INT}).encode().ljust(1 << 20), 200, None),
    (json.dumps({"schema": INT}).encode().ljust((1 << 20) + 1), 413, 413),
]  # fmt: skip


def test_bodies_that_no_client_sends_are_refused_or_served(rest: Rest) -> None:
    assert rest.register("a", INT).status == 200
    for body, status, code in BODIES:
        got = answer_to(rest, request("POST", VERSIONS, body))
        assert (got.status, got.body.get("error_code")) == (status, code), (body[:80], got)
    assert rest("GET", VERSIONS).body == [1]


@pytest.mark.parametrize(
    "name",
    ["%ff", "%00", "%0d%0a", "%", "%zz", "%E2%82%AC", "é", "a%2fb", "..", "%2e%2e", "a;b", "a#b",
     "%F0%9F%98%80", "x" * 3_000],
)  # fmt: skip
def test_a_name_that_no_subject_can_have_is_told_so(rest: Rest, name: str) -> None:
    for method, path, body, status, code in (
        ("GET", f"/subjects/{name}/versions", b"", 404, 40401),
        ("DELETE", f"/subjects/{name}", b"", 404, 40401),
        ("GET", f"/subjects/{name}/metadata", b"", 404, 40401),
        ("POST", f"/subjects/{name}/versions", b'{"schema": "\\"int\\""}', 422, 42208),
        ("PUT", f"/config/{name}", b'{"compatibility": "FULL"}', 422, 42208),
        ("PUT", f"/mode/{name}", b'{"mode": "READONLY"}', 422, 42208),
    ):
        got = answer_to(rest, request(method, path, body))
        assert (got.status, got.code, got.content_type) == (status, code, V1), (method, path)


@pytest.mark.parametrize(
    ("path", "status", "code"),
    [
        (f"{VERSIONS}/{'9' * 5_000}", 422, 42202),
        (f"{VERSIONS}/2147483647", 404, 40402),
        (f"{VERSIONS}/%D9%A3", 422, 42202),
        (f"{VERSIONS}/1.0", 422, 42202),
        (f"{VERSIONS}/%31", 200, None),
        (f"/schemas/ids/{'9' * 5_000}", 404, 40403),
        ("/schemas/ids/-1", 404, 40403),
        ("/schemas/ids/2147483648", 404, 40403),
        ("/subjects?offset=99999999999", 404, 404),
        ("/subjects?limit=%", 404, 404),
        ("/subjects?limit=1&limit=x&deleted=false&deleted=true", 200, None),
        ("/subjects?&&=&deleted&a=%ff", 200, None),
        ("/subjects?subjectPrefix=%00", 200, None),
        ("/subjects/../subjects", 404, 404),
        ("/schemas/ids/1?" + "a=b&" * 1_500, 200, None),
    ],
)
def test_numbers_and_parameters_at_the_edge(
    rest: Rest, path: str, status: int, code: int | None
) -> None:
    rest.register("a", INT)
    got = answer_to(rest, request("GET", path))
    told = got.body.get("error_code") if isinstance(got.body, dict) else None
    assert (got.status, told) == (status, code)


def test_each_connection_has_one_answer_whatever_follows(rest: Rest) -> None:
    """Keep-alive is declined; what a client sends behind its request is not read."""
    listed = request("GET", "/subjects", b"", "Connection: keep-alive")
    large = request("POST", VERSIONS, json.dumps({"schema": "x" * 900_000}).encode())
    for sent, status in ((listed * 3, 200), (listed + large, 200), (large * 2, 422)):
        answered = exchange(rest, sent)
        assert answered.startswith(f"HTTP/1.1 {status} ".encode())
        assert answered.count(b"HTTP/1.1 ") == 1
        assert b"Connection: close\r\n" in answered
    asked = request("POST", VERSIONS, b'{"schema": "\\"int\\""}', "Expect: 100-continue")
    assert exchange(rest, asked).startswith(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\n")


def test_versions_and_ids_at_the_end_of_their_range(rest: Rest) -> None:
    highest = (1 << 31) - 1
    rest("PUT", "/mode/a", {"mode": "IMPORT"})
    assert rest.register("a", INT, id=highest + 1).code == 42207
    assert rest.register("a", INT, id=1, version=highest + 1).code == 42202
    assert rest.register("a", INT, id=1, version=highest).body["version"] == highest
    rest("DELETE", "/mode/a")
    rest("PUT", "/config/a", {"compatibility": "NONE"})
    assert rest.register("a", LONG).code == 42202
    assert rest("GET", VERSIONS).body == [highest]
    assert rest("GET", f"{VERSIONS}/latest").body["version"] == highest


def test_zookeeper_that_goes_in_the_middle_is_told_in_time_and_found_again(
    chroot: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (
        Proxy(chroot.partition("/")[0]) as proxy,
        serving(proxy.connect_string(chroot)) as server,
        ThreadPoolExecutor(4) as pool,
    ):
        rest = Rest(server)
        assert rest.register("a", record("f?")).status == 200
        away = proxy.refuse

        def ask(worker: int) -> list[tuple[int, int | None]]:
            """Asks until ZooKeeper's absence has been told twice."""
            told: list[tuple[int, int | None]] = []
            while sum(status == 503 for status, _ in told) < 2:
                if worker % 2:
                    got = rest("GET", "/subjects")
                else:
                    fields = (f"w{worker}_{number}?" for number in range(len(told) + 1))
                    got = rest.register(f"s{worker}", record(*fields))
                code = got.body["error_code"] if got.status != 200 else None
                told.append((got.status, code))
                if len(told) == 5:
                    monkeypatch.setattr(server._session, "_operation_timeout_ms", 500)
                    away.set()
                    proxy.cut()
            return told

        for told in pool.map(ask, range(4)):
            assert set(told) <= {(200, None), (503, 50003)}
        assert server._session.state is not SessionState.CONNECTED
        assert rest("GET", "/schemas/ids/1").status == 200
        monkeypatch.undo()
        away.clear()
        wait_until(lambda: rest("GET", "/healthz").status == 200)
        for subject in rest("GET", "/subjects").body:
            versions = rest("GET", f"/subjects/{subject}/versions").body
            assert versions == list(range(1, len(versions) + 1))
        ids = sorted({each["id"] for each in rest("GET", "/schemas").body})
        assert ids == list(range(1, len(ids) + 1))
        assert rest.register("b", INT).body == {"id": len(ids) + 1, "version": 1}
