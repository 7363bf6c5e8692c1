"""The REST service over a real ZooKeeper: statuses, bodies and codes as they are documented."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from spark_logbus.coordination import paths
from spark_logbus.errors import StorageError
from spark_logbus.http import Request
from spark_logbus.schemas.rest.server import RegistryServer
from spark_logbus.zookeeper import SessionState
from tests.helpers import wait_until
from tests.servers.registry import DEADLINE_S, V1, Rest, serving
from tests.servers.zookeeper import Proxy, put

INT, LONG, TEXT = '"int"', '"long"', '"string"'


@pytest.fixture
def server(chroot: str) -> Iterator[RegistryServer]:
    with serving(chroot) as started:
        yield started


@pytest.fixture
def rest(server: RegistryServer) -> Rest:
    return Rest(server)


def record(*fields: str) -> str:
    return json.dumps(
        {
            "type": "record",
            "name": "R",
            "fields": [
                {"name": each.rstrip("?"), "type": "int"}
                | ({"default": 0} if each.endswith("?") else {})
                for each in fields
            ],
        }
    )


def test_the_first_steps_of_the_documentation(rest: Rest) -> None:
    """Register, list, fetch by id and version, look up, check, configure, delete."""
    assert rest("GET", "/subjects").body == []
    made = rest.register("Kafka-key", '{"type": "string"}')
    assert (made.status, made.body["id"], made.content_type) == (200, 1, V1)
    assert rest.register("Kafka-value", '{"type": "string"}').body["id"] == 1
    assert rest("GET", "/subjects").body == ["Kafka-key", "Kafka-value"]
    assert rest("GET", "/schemas/ids/1").body == {"schema": TEXT}
    assert rest("GET", "/subjects/Kafka-value/versions").body == [1]
    whole = {"subject": "Kafka-value", "version": 1, "id": 1, "schema": TEXT}
    for version in ("1", "latest", "-1"):
        assert rest("GET", f"/subjects/Kafka-value/versions/{version}").body == whole
    assert rest("GET", "/subjects/Kafka-value/versions/1/schema").body == "string"
    assert rest("POST", "/subjects/Kafka-key", {"schema": '{"type": "string"}'}).body == {
        **whole,
        "subject": "Kafka-key",
    }
    check = "/compatibility/subjects/Kafka-value/versions/latest"
    assert rest("POST", check, {"schema": '{"type": "string"}'}).body == {"is_compatible": True}
    assert rest("GET", "/config").body == {"compatibilityLevel": "BACKWARD"}
    assert rest("PUT", "/config", {"compatibility": "NONE"}).body == {"compatibility": "NONE"}
    assert rest("GET", "/config").body == {"compatibilityLevel": "NONE"}
    own = "/config/Kafka-value"
    assert rest("PUT", own, {"compatibility": "BACKWARD"}).body == {"compatibility": "BACKWARD"}
    assert rest("DELETE", "/subjects/Kafka-value/versions/1").body == 1
    assert rest("DELETE", "/subjects/Kafka-key").body == [1]
    assert rest("GET", "/subjects").body == []
    assert rest("GET", "/schemas/types").body == ["AVRO"]
    assert rest("GET", "/contexts").body == ["."]
    assert rest("GET", "/").body == {}
    assert rest("GET", "/healthz").status == 200


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "code"),
    [
        ("GET", "/subjects/none/versions", None, 404, 40401),
        ("GET", "/subjects/none/versions/1", None, 404, 40401),
        ("GET", "/subjects/a/versions/9", None, 404, 40402),
        ("GET", "/subjects/a/versions/0", None, 422, 42202),
        ("GET", "/subjects/a/versions/first", None, 422, 42202),
        ("GET", "/subjects/a/versions/9/referencedby", None, 404, 40402),
        ("GET", "/schemas/ids/99", None, 404, 40403),
        ("GET", "/schemas/ids/x", None, 404, 40403),
        ("GET", "/schemas/ids/99999999999999999999", None, 404, 40403),
        ("GET", "/schemas/ids/99/versions", None, 404, 40403),
        ("GET", "/schemas/ids/99/subjects", None, 404, 40403),
        ("POST", "/subjects/none", {"schema": INT}, 404, 40401),
        ("POST", "/subjects/a", {"schema": TEXT}, 404, 40403),
        ("POST", "/subjects/a", {"schema": "{"}, 422, 42201),
        ("POST", "/subjects/a/versions", {"schema": "{"}, 422, 42201),
        ("POST", "/subjects/a/versions", {"schema": '"itn"'}, 422, 42201),
        ("POST", "/subjects/a/versions", {"schema": ""}, 422, 42201),
        ("POST", "/subjects/a/versions", {"schema": None}, 422, 42201),
        ("POST", "/subjects/a/versions", {"schema": {"type": "int"}}, 422, 42201),
        ("POST", "/subjects/a/versions", {"schema": INT, "schemaType": "JSON"}, 422, 42201),
        ("POST", "/subjects/a/versions", {"schema": INT, "ruleSet": {"a": 1}}, 422, 42201),
        ("POST", "/subjects/a/versions", {"schema": INT, "references": [{"name": "a"}]}, 422,
         42201),
        ("POST", "/subjects/a/versions",
         {"schema": INT, "references": [{"name": "a", "subject": "q", "version": 1}]}, 422, 42201),
        ("POST", "/subjects/a/versions", {"schema": INT, "id": 7}, 422, 42205),
        ("POST", "/subjects/a/versions", {"schema": INT, "id": "7"}, 422, 422),
        ("POST", "/subjects/a/versions", {"schema": TEXT}, 409, 409),
        ("POST", "/subjects/a/versions", {"schema": '"' + "x" * 500_000 + '"'}, 422, 42209),
        ("POST", "/subjects/a%20b/versions", {"schema": INT}, 422, 42208),
        ("POST", "/subjects/%2e%2e/versions", {"schema": INT}, 422, 42208),
        ("GET", "/subjects/a%2Fb/versions", None, 404, 40401),
        ("PUT", "/config/a%20b", {"compatibility": "NONE"}, 422, 42208),
        ("POST", "/subjects/a/versions", b"{", 400, 400),
        ("POST", "/subjects/a/versions", b"[" * 100_000, 400, 400),
        ("POST", "/subjects/a/versions", [], 400, 400),
        ("POST", "/compatibility/subjects/none/versions/1", {"schema": INT}, 404, 40402),
        ("POST", "/compatibility/subjects/a/versions/9", {"schema": INT}, 404, 40402),
        ("POST", "/compatibility/subjects/a/versions/x", {"schema": INT}, 422, 42202),
        ("POST", "/compatibility/subjects/a/versions", {"schema": "{"}, 422, 42201),
        ("DELETE", "/subjects/none", None, 404, 40401),
        ("DELETE", "/subjects/a?permanent=true", None, 404, 40405),
        ("DELETE", "/subjects/a/versions/1?permanent=true", None, 404, 40407),
        ("DELETE", "/subjects/a/versions/9", None, 404, 40402),
        ("DELETE", "/subjects/a/versions/x", None, 422, 42202),
        ("GET", "/config/a", None, 404, 40408),
        ("GET", "/config/none", None, 404, 40408),
        ("DELETE", "/config/a", None, 404, 40401),
        ("PUT", "/config", {"compatibility": "SIDEWAYS"}, 422, 42203),
        ("PUT", "/config", {}, 422, 42203),
        ("GET", "/mode/a", None, 404, 40409),
        ("DELETE", "/mode/a", None, 404, 40401),
        ("PUT", "/mode/a", {"mode": "OFF"}, 422, 42204),
        ("PUT", "/mode/a", {"mode": "IMPORT"}, 422, 42205),
        ("GET", "/subjects?offset=x", None, 404, 404),
        ("GET", "/subjects?offset=-1", None, 422, 422),
        ("GET", "/nothing", None, 404, 404),
        ("PATCH", "/subjects", None, 405, 405),
        ("PUT", "/subjects", {}, 405, 405),
    ],
)  # fmt: skip
def test_what_is_refused_has_its_status_and_code(
    rest: Rest, method: str, path: str, body: object, status: int, code: int
) -> None:
    assert rest.register("a", INT).status == 200
    answered = rest(method, path, body)
    assert (answered.status, answered.code) == (status, code), answered
    assert answered.content_type == V1
    assert answered.body["message"]
    assert rest("GET", "/subjects/a/versions").body == [1]


def test_deletions_soft_and_hard(rest: Rest) -> None:
    rest.register("a", INT)
    rest.register("a", LONG)
    rest.register("b", INT)
    assert rest("DELETE", "/subjects/a/versions/1").body == 1
    assert rest("DELETE", "/subjects/a/versions/1").code == 40406
    assert rest("GET", "/subjects/a/versions/1").code == 40402
    shown = rest("GET", "/subjects/a/versions/1?deleted=true").body
    assert shown["deleted"] is True
    assert rest("GET", "/subjects/a/versions").body == [2]
    assert rest("GET", "/subjects/a/versions?deleted=true").body == [1, 2]
    assert rest("GET", "/subjects/a/versions?deletedOnly=true").body == [1]
    assert rest("GET", "/schemas/ids/1").body == {"schema": INT}
    assert rest("GET", "/schemas/ids/1/versions").body == [{"subject": "b", "version": 1}]
    assert rest("GET", "/schemas/ids/1/subjects?deleted=true").body == ["a", "b"]
    assert rest("POST", "/subjects/a", {"schema": INT}).code == 40403
    assert rest("POST", "/subjects/a?deleted=true", {"schema": INT}).body["version"] == 1
    assert rest("DELETE", "/subjects/a").body == [2]
    assert rest("DELETE", "/subjects/a").code == 40404
    assert rest("GET", "/subjects/a/versions").code == 40401
    assert rest("GET", "/subjects").body == ["b"]
    assert rest("GET", "/subjects?deleted=True").body == ["a", "b"]
    assert rest("GET", "/subjects?deletedOnly=true").body == ["a"]
    assert rest("DELETE", "/subjects/a/versions/2?permanent=true").body == 2
    assert rest("DELETE", "/subjects/a?permanent=true").body == [1]
    assert rest("DELETE", "/subjects/a?permanent=true").code == 40401
    assert rest("GET", "/schemas/ids/2").code == 40403
    assert rest("GET", "/schemas/ids/1").status == 200  # b has it


def test_compatibility_is_told_with_its_rules(rest: Rest) -> None:
    rest.register("a", record("x"))
    wrong = {"schema": record("x", "y")}
    for path in ("/compatibility/subjects/a/versions/1", "/compatibility/subjects/a/versions"):
        assert rest("POST", path, wrong).body == {"is_compatible": False}
        told = rest("POST", f"{path}?verbose=true", wrong).body
        assert told["is_compatible"] is False
        assert "errorType:'READER_FIELD_MISSING_DEFAULT_VALUE'" in told["messages"][0]
        assert "At fields[1] of the new schema" in told["messages"][0]
        assert told["messages"][1:] == ["{oldSchemaVersion: 1}", "{compatibility: 'BACKWARD'}"]
        right = rest("POST", f"{path}?verbose=true", {"schema": record("x", "y?")}).body
        assert right == {"is_compatible": True, "messages": []}
    unreadable = rest("POST", "/compatibility/subjects/a/versions?verbose=true", {"schema": "{"})
    assert unreadable.body["is_compatible"] is False
    assert "no JSON" in unreadable.body["messages"][0]
    refused = rest("POST", "/subjects/a/versions", wrong)
    assert refused.status == 409
    assert "READER_FIELD_MISSING_DEFAULT_VALUE at fields[1]" in refused.body["message"]
    new = rest("POST", "/compatibility/subjects/new/versions/latest", wrong)
    assert new.body == {"is_compatible": True}


def test_settings_of_all_and_of_one(rest: Rest) -> None:
    rest("PUT", "/config", {"compatibility": "full"})
    assert rest("GET", "/config/a?defaultToGlobal=true").body == {"compatibilityLevel": "FULL"}
    rest("PUT", "/config/a", {"compatibility": "FORWARD_TRANSITIVE"})
    assert rest("GET", "/config/a").body == {"compatibilityLevel": "FORWARD_TRANSITIVE"}
    assert rest("DELETE", "/config/a").body == {"compatibilityLevel": "FORWARD_TRANSITIVE"}
    assert rest("GET", "/config/a").code == 40408
    assert rest("DELETE", "/config").body == {"compatibilityLevel": "FULL"}
    assert rest("GET", "/config").body == {"compatibilityLevel": "BACKWARD"}
    assert rest("GET", "/mode").body == {"mode": "READWRITE"}
    assert rest("PUT", "/mode", {"mode": "READONLY"}).body == {"mode": "READONLY"}
    assert rest.register("a", INT).code == 42205
    assert rest("GET", "/mode/a?defaultToGlobal=true").body == {"mode": "READONLY"}
    assert rest("PUT", "/mode/a", {"mode": "IMPORT"}).body == {"mode": "IMPORT"}
    assert rest.register("a", INT, id=17, version=4).body == {"id": 17, "version": 4}
    assert rest.register("a", LONG, id=17).code == 42207
    rest("PUT", "/mode/a", {"mode": "READWRITE"})
    assert rest("PUT", "/mode/a", {"mode": "IMPORT"}).code == 42205
    assert rest("PUT", "/mode/a?force=True", {"mode": "IMPORT"}).status == 200
    assert rest("DELETE", "/mode/a").body == {"mode": "IMPORT"}
    assert rest("DELETE", "/mode").body == {"mode": "READONLY"}
    assert rest.register("b", LONG, id=-1).body["id"] == 18


def test_references_between_subjects(rest: Rest) -> None:
    item = rest.register("item", '{"type": "record", "name": "shop.Item", "fields": []}')
    used = [{"name": "shop.Item", "subject": "item", "version": 1}]
    text = '{"type": "array", "items": "shop.Item"}'
    assert rest.register("order", text).code == 42201
    order = rest.register("order", text, references=used).body["id"]
    shown = {"schema": '{"type":"array","items":"shop.Item"}', "references": used}
    assert rest("GET", f"/schemas/ids/{order}").body == shown
    assert rest("GET", "/subjects/order/versions/1").body["references"] == used
    assert rest("GET", "/subjects/item/versions/1/referencedby").body == [order]
    assert rest("GET", "/subjects/item/versions/latest/referencedby").body == [order]
    assert rest("GET", "/subjects/order/versions/1/referencedby").body == []
    assert rest("DELETE", "/subjects/item/versions/1").code == 42206
    assert rest("DELETE", "/subjects/item").code == 42206
    found = rest("POST", "/subjects/order", {"schema": text, "references": used})
    assert found.body["id"] == order
    latest = [{**used[0], "version": -1}]
    assert rest.register("order", text, references=latest).body["id"] == order
    assert item.body["id"] != order


def test_lists_have_pages_and_prefixes(rest: Rest) -> None:
    for number in range(6):
        rest.register(f"s{number}", INT)
        rest.register(f"s{number}", LONG)
    rest.register("t", INT)
    assert rest("GET", "/subjects?subjectPrefix=s&offset=1&limit=2").body == ["s1", "s2"]
    assert rest("GET", "/subjects?offset=6&limit=-1").body == ["t"]
    assert rest("GET", "/subjects?limit=0").body == []
    assert rest("GET", "/subjects/s0/versions?offset=1").body == [2]
    assert len(rest("GET", "/schemas/ids/1/subjects?limit=3").body) == 3
    assert rest("GET", "/schemas/ids/1/versions?subject=t").body == [{"subject": "t", "version": 1}]
    assert len(rest("GET", "/schemas").body) == 13
    latest = rest("GET", "/schemas?latestOnly=true&subjectPrefix=s&limit=2").body
    assert latest == [
        {"subject": "s0", "version": 2, "id": 2, "schema": LONG},
        {"subject": "s1", "version": 2, "id": 2, "schema": LONG},
    ]
    rest("DELETE", "/subjects/s0")
    assert len(rest("GET", "/schemas").body) == 11
    assert len(rest("GET", "/schemas?deleted=true").body) == 13


def test_schemas_that_mean_the_same_are_found_on_demand(rest: Rest) -> None:
    rest.register("a", '{"type": "int", "b": 1, "a": 2}')
    other = {"schema": '{"type": "int", "a": 2, "b": 1}'}
    assert rest("POST", "/subjects/a", other).code == 40403
    assert rest("POST", "/subjects/a?normalize=true", other).body["version"] == 1
    assert rest("POST", "/subjects/a/versions?normalize=true", other).body["version"] == 1
    assert rest("POST", "/subjects/a/versions", other).body["version"] == 2


@pytest.mark.parametrize(
    ("accept", "answered"),
    [
        ("*/*", V1),
        ("", V1),
        ("application/json", "application/json"),
        ("application/vnd.schemaregistry+json; q=0.9, text/html",
         "application/vnd.schemaregistry+json"),
        ("text/html, application/*;q=0.1", V1),
    ],
)  # fmt: skip
def test_the_content_type_is_what_the_client_accepts(
    rest: Rest, accept: str, answered: str
) -> None:
    assert rest("GET", "/subjects", headers={"Accept": accept}).content_type == answered


def test_nothing_is_done_for_who_cannot_take_the_answer(rest: Rest) -> None:
    for headers, status in (
        ({"Accept": "text/html"}, 406),
        ({"Content-Type": "text/plain"}, 415),
        ({"Content-Type": "application/x-www-form-urlencoded"}, 415),
    ):
        answered = rest("POST", "/subjects/a/versions", {"schema": INT}, headers=headers)
        assert (answered.status, answered.code) == (status, status)
    assert rest("GET", "/subjects").body == []
    typed = {"Content-Type": "application/json; charset=utf-8"}
    assert rest("POST", "/subjects/a/versions", {"schema": INT}, headers=typed).status == 200


def test_names_are_percent_encoded_and_keep_to_the_rules(rest: Rest) -> None:
    assert rest.register("a.b_c-D%2Evalue", INT).status == 200
    assert rest("GET", "/subjects").body == ["a.b_c-D.value"]


def test_a_body_that_is_too_large_or_never_comes_does_not_hold_the_service(rest: Rest) -> None:
    answered = rest("POST", "/subjects/a/versions", {"schema": "x" * (1 << 20)})
    assert (answered.status, answered.code) == (413, 413)
    slow = []
    for _ in range(40):
        sock = socket.create_connection(rest.address, timeout=DEADLINE_S)
        sock.sendall(b"POST /subjects/a/versions HTTP/1.1\r\nContent-Length: 500000\r\n\r\n{")
        slow.append(sock)
    assert rest.register("a", INT).status == 200
    for sock in slow:
        sock.close()


def test_deep_schemas_are_refused_and_large_ones_taken_in_time(rest: Rest) -> None:
    deep = '{"type": "array", "items": ' * 10_000 + '"int"' + "}" * 10_000
    assert rest.register("a", deep).code == 42201
    large = record(*(f"field_{number}?" for number in range(6_500)))
    assert 300_000 < len(large) < 400_000
    made = rest.register("a", large)
    assert made.status == 200
    assert rest.register("a", record(*(f"field_{n}?" for n in range(6_501)))).status == 200
    assert len(rest("GET", "/schemas/ids/1").body["schema"]) > 250_000


def test_a_registry_starts_where_another_one_ended(chroot: str) -> None:
    for number in (1, 2, 3):
        with serving(chroot) as server:
            rest = Rest(server)
            assert rest.register("a", record(*(f"f{n}?" for n in range(number)))).body == {
                "id": number,
                "version": number,
            }
            assert rest("GET", "/subjects/a/versions").body == list(range(1, number + 1))


@pytest.mark.long
def test_without_zookeeper_the_answer_is_503_in_time_and_known_schemas_are_served(
    chroot: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Proxy(chroot.partition("/")[0]) as proxy:
        server = RegistryServer(zookeeper=proxy.connect_string(chroot), host="127.0.0.1", port=0)
        server.start()
        try:
            rest = Rest(server)
            rest.register("a", INT)
            monkeypatch.setattr(server._session, "_operation_timeout_ms", 500)
            proxy.refuse.set()
            proxy.cut()
            wait_until(lambda: server._session.state is not SessionState.CONNECTED)
            for _ in range(100):
                assert rest("GET", "/schemas/ids/1").body == {"schema": INT}
            for answered in (
                rest.register("a", LONG),
                rest("GET", "/subjects"),
                rest("GET", "/schemas/ids/2"),
                rest("GET", "/healthz"),
            ):
                assert (answered.status, answered.code) == (503, 50003)
        finally:
            server.stop()


def test_a_node_that_cannot_be_read_is_a_fault_of_the_store(chroot: str, rest: Rest) -> None:
    rest.register("a", INT)
    put(chroot, paths.subject("a"), b"nonsense")
    answered = rest("GET", "/subjects/a/versions")
    assert (answered.status, answered.code) == (500, 50001)
    assert rest("GET", "/subjects").body == []


def test_a_port_that_is_taken_is_named(chroot: str, rest: Rest) -> None:
    port = rest.address[1]
    second = RegistryServer(zookeeper=chroot, host="127.0.0.1", port=port)
    with pytest.raises(StorageError, match=f"Cannot listen on 127.0.0.1:{port}"):
        second.start()
    third = RegistryServer(zookeeper=chroot, host="127.0.0.1", port=0, preferred_port=port)
    third.start()
    assert third.url != f"http://127.0.0.1:{port}"
    third.stop()


NAMES = st.sampled_from(["a", "b", "a b", "..", "", "%", "é", "x" * 300, "a%2Fb"])
NUMBERS = st.sampled_from(["1", "0", "-1", "latest", "x", "9" * 30, "2147483648", "1.5"])
TEXTS = st.sampled_from([INT, LONG, TEXT, '"itn"', "{", record("x"), record("x", "y"), "", "[]"])
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8) | TEXTS | NAMES | NUMBERS,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["name", "subject", "version", "schema", "id", "mode", "references"]),
            inner,
            max_size=4,
        )
    ),
    max_leaves=8,
)
BODIES = (
    st.none()
    | st.dictionaries(
        st.sampled_from(
            [
                "schema",
                "schemaType",
                "references",
                "id",
                "version",
                "compatibility",
                "mode",
                "ruleSet",
            ]
        ),
        TEXTS | VALUES,
        max_size=4,
    ).map(lambda body: json.dumps(body).encode())
    | st.binary(max_size=20)
)
FLAGS = st.dictionaries(
    st.sampled_from(["deleted", "permanent", "normalize", "verbose", "offset", "limit", "force"]),
    st.sampled_from(["true", "false", "", "1", "-1", "x"]),
    max_size=3,
)


@pytest.mark.long
@settings(
    max_examples=300,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(data=st.data(), body=BODIES, flags=FLAGS)
def test_no_request_meets_a_failure_that_was_not_foreseen(
    server: RegistryServer, data: st.DataObject, body: bytes | None, flags: dict[str, str]
) -> None:
    assert server._server is not None
    routes = server._server._server.routes
    method, pattern, _ = data.draw(st.sampled_from(routes._routes))
    path = "/".join(
        segment
        if not segment.startswith("{")
        else data.draw(NAMES if segment == "{subject}" else NUMBERS)
        for segment in pattern
    )
    answered = routes.answer(Request(method, path, flags, body or b""))
    assert answered.status in (200, 400, 404, 405, 409, 422), answered
    assert answered.content_type == V1
    json.loads(answered.body)
