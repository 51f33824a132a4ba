"""Every route of the table, without a key and with tricks, answers 401 or says there is no such thing."""

import re
from collections.abc import Iterator

import pytest
from api_live import Live, backend, config

from octavo.serve.auth import Scope
from octavo.serve.calls import Endpoint
from octavo.serve.table import ENDPOINTS

KEY = "sk-correct-horse"
GUARDED = [endpoint for endpoint in ENDPOINTS if endpoint.scope not in (Scope.OPEN, Scope.PAGE)]


@pytest.fixture(scope="module")
def keyed() -> Iterator[Live]:
    with Live(config(api_key=[KEY, "sk-second"]), backend()) as live:
        yield live


def concrete(endpoint: Endpoint) -> str:
    return re.sub(r"\{\w+(:path)?\}", "tiny", endpoint.path)


def test_only_probes_and_the_page_are_open() -> None:
    assert {endpoint.path for endpoint in ENDPOINTS if endpoint.scope is Scope.OPEN} == {"/health", "/ready"}
    assert {endpoint.path for endpoint in ENDPOINTS if endpoint.scope is Scope.PAGE} == {"/"}


@pytest.mark.parametrize("endpoint", GUARDED, ids=lambda endpoint: endpoint.path)
def test_no_route_answers_without_its_key(keyed: Live, endpoint: Endpoint) -> None:
    path = concrete(endpoint)
    for method in endpoint.methods:
        for headers in (
            {},
            {"Authorization": "Bearer wrong"},
            {"Authorization": KEY},
            {"Authorization": "Basic " + KEY},
            {"X-Api-Key": KEY[:-1]},
            {"Cookie": f"key={KEY}"},
        ):
            answer = keyed.call(method, path, b"{}" if method == "POST" else None, headers)
            assert answer.status == 401, (path, headers)
            assert answer.error["type"] == "authentication_error"
            assert answer.headers["www-authenticate"] == "Bearer"
            assert KEY.encode() not in answer.body
        assert keyed.call(method, f"{path}?api_key={KEY}", b"{}" if method == "POST" else None).status == 401
    assert not keyed.engine.requests


@pytest.mark.parametrize("endpoint", GUARDED, ids=lambda endpoint: endpoint.path)
def test_path_games(keyed: Live, endpoint: Endpoint) -> None:
    path, method = concrete(endpoint), endpoint.methods[0]
    last = path.rsplit("/", 1)
    encoded = f"{last[0]}/%{ord(last[1][0]):02x}{last[1][1:]}"
    tricks = [
        "/" + path,
        path + "/",
        path + ";x",
        path.upper(),
        "/v1/.." + path,
        "/./" + path.lstrip("/"),
        "/health/.." + path,
        encoded,
        path + "%00",
        path + "%2f",
        path.replace("/", "\\"),
        f"http://localhost{path}",
        f"http://evil.example{path}",
    ]
    for trick in tricks:
        line = f"{method} {trick} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
        reply = keyed.raw(line.encode())
        assert int(reply.split(b" ", 2)[1]) in (400, 401, 404, 405), (trick, reply[:100])
    assert not keyed.engine.requests


@pytest.mark.parametrize(
    "headers",
    [
        f"Host: localhost\r\nAuthorization: Bearer {KEY}\r\nAuthorization: Bearer {KEY}\r\n",
        f"Host: localhost\r\nHost: other\r\nAuthorization: Bearer {KEY}\r\n",
        f"Host: a/b\r\nAuthorization: Bearer {KEY}\r\n",
        "Host: localhost/../health\r\n",
        "",
    ],
)
def test_header_games(keyed: Live, headers: str) -> None:
    for version in ("1.1", "1.0"):
        reply = keyed.raw(f"GET /v1/models HTTP/{version}\r\n{headers}Connection: close\r\n\r\n".encode())
        assert int(reply.split(b" ", 2)[1]) in (400, 401)


def test_right_keys_pass_by_both_headers(keyed: Live) -> None:
    assert keyed.get("/v1/models", Authorization=f"Bearer {KEY}").status == 200
    assert keyed.get("/v1/models", x_api_key="sk-second").status == 200
    assert keyed.get("/health").status == 200
    assert keyed.get("/").status == 200


def test_keys_have_caches_of_their_own(keyed: Live) -> None:
    body = {"prompt": "hello", "max_tokens": 1}
    for key in (KEY, "sk-second"):
        keyed.post("/v1/completions", body, Authorization=f"Bearer {key}")
    salts = [request.cache_salt for request in keyed.engine.requests]
    assert len(set(salts)) == 2
    assert KEY not in "".join(salts)


def test_unknown_paths_and_methods(live: Live) -> None:
    answer = live.get("/v1/nothing")
    assert (answer.status, answer.error["code"]) == (404, "not_found")
    answer = live.get("/v1/chat/completions")
    assert (answer.status, answer.error["code"]) == (405, "method_not_allowed")
    assert answer.headers["allow"] == "POST"
    assert live.call("DELETE", "/v1/models").status == 405
    assert live.call("OPTIONS", "/v1/completions").status == 405


def test_foreign_pages_are_refused(live: Live) -> None:
    assert live.post("/v1/completions", {"prompt": "a"}, Origin="https://evil.example").status == 403
    assert live.get("/v1/models", Host="evil.example").status == 403
    assert live.get("/v1/models", Host="localhost:1").status == 200
    assert live.post("/v1/completions", {"prompt": "a", "max_tokens": 1}, Origin=live.url).status == 200


def test_request_ids(live: Live) -> None:
    assert live.get("/health", X_Request_Id="abc-1.2_3:z").headers["x-request-id"] == "abc-1.2_3:z"
    for bad in ("a b", "x" * 129, "<script>", "é"):
        given = live.raw(
            f"GET /health HTTP/1.1\r\nHost: localhost\r\nX-Request-Id: {bad}\r\nConnection: close\r\n\r\n".encode()
        )
        assert bad.encode() not in given
        assert b"x-request-id: " in given
