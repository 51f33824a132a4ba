"""Keys in a file: scopes, change while running, limits, the operator's own door, and what keys do not share."""

import json
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from api_live import Answer, Live, backend, config

from octavo.base.config import EngineConfig, ModelConfig, OctavoConfig
from octavo.base.errors import ConfigError
from octavo.serve.app import App
from octavo.serve.auth import Scope
from octavo.serve.calls import Endpoint, Service, json_reply
from octavo.serve.keyfile import GRANTS, PLAIN_SCOPES, Key, KeyLimits, digest_of, line_of
from octavo.serve.limits import Limits
from octavo.serve.table import ENDPOINTS

PROMPT = {"prompt": "hello", "max_tokens": 4}


def line(name: str, key: str, scopes: str = "inference", limits: KeyLimits | None = None) -> str:
    granted = frozenset(GRANTS[scope] for scope in scopes.split(","))
    return line_of(Key(digest_of(key.encode()), granted, name, limits or KeyLimits()))


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "keys.txt"
    path.write_text(
        "# who may call\n\n"
        + "\n".join(
            [
                line("alice", "key-of-alice"),
                line("bob", "key-of-bob"),
                line("grafana", "key-of-grafana", "metrics"),
                line("root", "key-of-root", "admin"),
                line("slow", "key-of-slow", limits=KeyLimits(requests=3)),
                line("short", "key-of-short", limits=KeyLimits(tokens=60)),
                line("narrow", "key-of-narrow", limits=KeyLimits(concurrent=1)),
            ]
        )
        + "\n"
    )
    return path


@pytest.fixture
def named(file: Path) -> Iterator[Live]:
    with Live(config(api_key_file=str(file)), backend()) as live:
        yield live
        assert live.quiet()


def call(live: Live, key: str, path: str = "/v1/completions", body: Any = PROMPT) -> Answer:
    return live.call("POST" if body is not None else "GET", path, body, bearer(key))


def wait_for(live: Live, key: str, status: int, seconds: float = 3.0) -> float:
    begin = time.monotonic()
    while live.get("/v1/models", **bearer(key)).status != status:
        assert time.monotonic() - begin < seconds
        time.sleep(0.05)
    return time.monotonic() - begin


# --- scopes


def test_every_route_and_method_asks_for_its_scope(named: Live) -> None:
    keys = {Scope.USE: "key-of-alice", Scope.METRICS: "key-of-grafana", Scope.ADMIN: "key-of-root"}
    for endpoint in ENDPOINTS:
        path = endpoint.path.replace("{model:path}", "tiny").replace("{", "").replace("}", "")
        for method in endpoint.methods:
            for scope, key in keys.items():
                answer = named.call(method, path, b"{}" if method == "POST" else None, bearer(key))
                free = endpoint.scope in (Scope.OPEN, Scope.PAGE, Scope.DOCS)
                assert (answer.status == 403) == (not free and endpoint.scope is not scope), (method, path, scope)
                if answer.status == 403:
                    assert answer.json["error"]["type"] == "permission_error"
        for method in ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "PROPFIND"):
            without = named.call(method, path)
            if endpoint.scope not in (Scope.OPEN, Scope.PAGE):
                assert without.status in (401, 404, 405), (method, path)
        for method in endpoint.methods:
            without = named.call(method, path, b"{}" if method == "POST" else None)
            assert (without.status == 401) == (endpoint.scope not in (Scope.OPEN, Scope.PAGE))
    commands = [command for command, _ in named.engine.commands]
    assert commands.count("reset_prefix_cache") == 1, "by the key that may"
    assert commands.count("sleep") == commands.count("wake_up") == commands.count("is_sleeping") == 1


def test_a_route_cannot_be_made_without_a_scope() -> None:
    async def handler(_: Any) -> Any:
        return json_reply({})

    with pytest.raises(TypeError):
        Endpoint("/x", ("GET",))  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="who may call"):
        Endpoint("/x", ("GET",), None, handler)  # type: ignore[arg-type]


def test_plain_keys_are_no_operators() -> None:
    assert Scope.ADMIN not in PLAIN_SCOPES
    with Live(config(api_key=["sk-plain"]), backend()) as live:
        assert call(live, "sk-plain").status == 200
        assert call(live, "sk-plain", "/metrics", None).status == 200
        assert call(live, "sk-plain", "/reset_prefix_cache", {}).status == 403


# --- change while running


def test_a_key_that_is_taken_away_is_refused_within_a_second_and_its_stream_goes_on(named: Live, file: Path) -> None:
    named.engine.delay_s = 0.02
    got: list[Answer] = []
    body = {"prompt": "hello", "max_tokens": 100, "stream": True}
    thread = threading.Thread(target=lambda: got.append(call(named, "key-of-alice", body=body)))
    thread.start()
    while not named.engine.open:
        time.sleep(0.005)
    file.write_text(line("alice", "new-key-of-alice") + "\n" + line("bob", "key-of-bob") + "\n")
    assert wait_for(named, "key-of-alice", 401) < 1.0
    assert thread.is_alive(), "the stream was still under way"
    assert call(named, "new-key-of-alice", "/v1/models", None).status == 200
    assert call(named, "key-of-bob", "/v1/models", None).status == 200
    thread.join()
    assert got[0].events[-1] == "[DONE]"
    assert len(got[0].events) > 50


def test_a_broken_file_changes_nothing_and_an_empty_one_lets_nobody_in(
    named: Live, file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    good = file.read_text()
    file.write_text(good + "eve:inference:my-secret-key\n")
    time.sleep(0.6)
    assert call(named, "key-of-alice", "/v1/models", None).status == 200
    assert call(named, "my-secret-key", "/v1/models", None).status == 401
    assert "line 10" in caplog.text
    assert "my-secret-key" not in caplog.text
    os.remove(file)
    time.sleep(0.6)
    assert call(named, "key-of-alice", "/v1/models", None).status == 200
    file.write_text("# nobody\n")
    wait_for(named, "key-of-alice", 401)
    assert named.get("/v1/models").status == 401


# --- limits


def test_requests_a_minute(named: Live) -> None:
    for left in (2, 1, 0):
        answer = call(named, "key-of-slow")
        assert answer.status == 200
        assert answer.headers["x-ratelimit-limit-requests"] == "3"
        assert answer.headers["x-ratelimit-remaining-requests"] == str(left)
    answer = call(named, "key-of-slow", body={**PROMPT, "stream": True})
    assert answer.status == 429
    assert (answer.error["type"], answer.error["code"]) == ("rate_limit_error", "rate_limit_exceeded")
    assert 15 <= int(answer.headers["retry-after"]) <= 20
    assert answer.headers["x-ratelimit-reset-requests"].endswith("s")
    assert call(named, "key-of-slow", "/v1/models", None).status == 200, "only inference counts"
    assert call(named, "key-of-alice").status == 200


def test_tokens_a_minute(named: Live) -> None:
    answer = call(named, "key-of-short", body={"prompt": [5] * 20, "max_tokens": 50})
    assert answer.status == 200
    assert answer.headers["x-ratelimit-limit-tokens"] == "60"
    assert answer.headers["x-ratelimit-remaining-tokens"] == "40"
    answer = call(named, "key-of-short")
    assert answer.status == 429, "20 and 50 are more than 60"
    assert int(answer.headers["retry-after"]) >= 10
    assert answer.headers["x-ratelimit-remaining-tokens"] == "0"


def test_requests_at_once(named: Live) -> None:
    named.engine.delay_s = 0.02
    body = {"prompt": "hello", "max_tokens": 60, "stream": True}
    thread = threading.Thread(target=call, args=(named, "key-of-narrow"), kwargs={"body": body})
    thread.start()
    while not named.engine.open:
        time.sleep(0.005)
    assert call(named, "key-of-narrow").status == 429
    assert call(named, "key-of-alice").status == 200
    thread.join()
    assert call(named, "key-of-narrow").status == 200


def test_work_in_the_background_counts_until_it_ends(tmp_path: Path, file: Path) -> None:
    conf = config(api_key_file=str(file), response_store=str(tmp_path / "responses.sqlite"))
    with Live(conf, backend()) as live:
        live.engine.delay_s = 0.02
        body = {"model": "tiny", "input": "hi", "max_output_tokens": 400, "background": True}
        id = call(live, "key-of-narrow", "/v1/responses", body).json["id"]
        assert call(live, "key-of-narrow").status == 429
        assert call(live, "key-of-narrow", "/v1/responses", body).status == 429
        assert call(live, "key-of-alice").status == 200
        assert call(live, "key-of-narrow", f"/v1/responses/{id}/cancel", {}).json["status"] == "cancelled"
        assert call(live, "key-of-narrow").status == 200


def test_other_dialects_count_once(named: Live) -> None:
    message = {"model": "tiny", "max_tokens": 4, "messages": [{"role": "user", "content": "hi"}]}
    assert call(named, "key-of-slow", "/v1/messages", message).status == 200
    answer = call(named, "key-of-slow", "/v1/responses", {"model": "tiny", "input": "hi", "max_output_tokens": 4})
    assert answer.status == 200
    assert call(named, "key-of-slow").headers["x-ratelimit-remaining-requests"] == "0"
    assert call(named, "key-of-slow", "/v1/messages", message).json["error"]["type"] == "rate_limit_error"


# --- what keys share


def test_names_are_tenants_and_salts(named: Live) -> None:
    for key in ("key-of-alice", "key-of-bob", "key-of-alice"):
        call(named, key, body={**PROMPT, "cache_salt": "mine"})
    assert [request.tenant for request in named.engine.requests] == ["alice", "bob", "alice"]
    assert [request.cache_salt for request in named.engine.requests] == ["alice:mine", "bob:mine", "alice:mine"]


def test_a_shared_cache_is_shared(file: Path) -> None:
    with Live(config(api_key_file=str(file), shared_prefix_cache=True), backend()) as live:
        call(live, "key-of-alice")
        call(live, "key-of-bob")
        assert {request.cache_salt for request in live.engine.requests} == {""}
        assert [request.tenant for request in live.engine.requests] == ["alice", "bob"]


def test_one_plain_key_shares_nothing_with_nobody(live: Live) -> None:
    live.complete("hello", max_tokens=1)
    assert (live.engine.requests[-1].tenant, live.engine.requests[-1].cache_salt) == ("", "")


def test_what_is_stored_belongs_to_the_name(tmp_path: Path, file: Path) -> None:
    conf = config(api_key_file=str(file), response_store=str(tmp_path / "responses.sqlite"))
    with Live(conf, backend()) as live:
        body = {"model": "tiny", "input": "hi", "max_output_tokens": 4}
        id = call(live, "key-of-alice", "/v1/responses", body).json["id"]
        assert call(live, "key-of-bob", f"/v1/responses/{id}", None).status == 404
        file.write_text(line("alice", "second-key-of-alice") + "\n")
        wait_for(live, "second-key-of-alice", 200)
        assert call(live, "second-key-of-alice", f"/v1/responses/{id}", None).status == 200


# --- addresses and doors


def test_the_network_is_not_let_in_without_a_key() -> None:
    def app(**serve: Any) -> App:
        conf = config(host="0.0.0.0", **serve)
        return App(Service(conf, Limits(conf.serve, 4)))

    with pytest.raises(ConfigError, match="--insecure"):
        app()
    app(insecure=True)
    app(api_key=["sk-something"])
    with pytest.raises(ConfigError, match="would let anyone in"):
        app(api_key=[" "])


def test_insecure_lets_nobody_administer() -> None:
    with Live(config(host="0.0.0.0", insecure=True), backend()) as live:
        assert live.complete("a", max_tokens=1).status == 200
        assert live.post("/reset_prefix_cache", {}).status == 403
        assert not live.engine.commands


def test_without_keys_loopback_may_administer_but_no_web_page(live: Live) -> None:
    assert live.post("/reset_prefix_cache", {}, Origin="https://evil.example").status == 403
    assert live.post("/reset_prefix_cache", {}, Host="evil.example").status == 403
    assert live.post("/reset_prefix_cache", {}).json == {"status": "ok"}
    assert live.engine.commands == [("reset_prefix_cache", {})]


def test_the_operators_own_door(file: Path) -> None:
    with Live(config(api_key_file=str(file), admin_port=0), backend()) as live:
        assert live.server.admin is not None
        outside, live_port = live.port, live.server.admin.getsockname()
        assert live_port[0] == "127.0.0.1"
        assert call(live, "key-of-root", "/reset_prefix_cache", {}).status == 404, "it is nowhere else"
        assert call(live, "key-of-grafana", "/metrics", None).status == 200
        live.port = live_port[1]
        assert live.post("/reset_prefix_cache", {}).status == 200
        assert live.get("/metrics").status == live.get("/health").status == 200
        assert live.post("/reset_prefix_cache", {}, Host="evil.example").status == 403
        assert live.post("/reset_prefix_cache", {}, Origin="https://evil.example").status == 403
        for path in ("/v1/models", "/", "/docs", "/version"):
            assert live.get(path).status == 404
        assert call(live, "key-of-alice").status == 404
        live.port = outside
        assert len(live.engine.commands) == 1


def test_sites_that_are_let_in_may_not_administer() -> None:
    site = {"Origin": "https://app.example"}
    with Live(config(allowed_origins=["*"], admin_port=0), backend()) as live:
        assert live.call("POST", "/v1/completions", PROMPT, site).status == 200
        live.port = live.server.admin.getsockname()[1]  # type: ignore[union-attr]
        assert live.call("POST", "/reset_prefix_cache", {}, site).status == 403
        asked = live.call("OPTIONS", "/reset_prefix_cache", None, {**site, "Access-Control-Request-Method": "POST"})
        assert asked.status == 405
        assert not [name for name in asked.headers if name.startswith("access-control")]
    with Live(config(allowed_origins=["*"]), backend()) as live:
        assert live.call("POST", "/reset_prefix_cache", {}, site).status == 403
        assert not live.engine.commands


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"allowed_origins": ["app.example"]}, "--allowed-origins takes https://HOST"),
        ({"allowed_origins": ["https://a.example/path"]}, "--allowed-origins takes https://HOST"),
        ({"api_key": ["sk-a\x01b"]}, "no header can carry"),
    ],
)
def test_what_could_never_let_anyone_in_stops_the_start(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        Live(config(**fields), backend())


@pytest.mark.parametrize("name", ["", "a\nb", "n" * 257])
def test_a_name_that_no_request_can_carry_stops_the_start(name: str) -> None:
    given = OctavoConfig(engine=EngineConfig(model=ModelConfig(model="m", served_model_name=[name])))
    with pytest.raises(ConfigError, match="--served-model-name"):
        Service(given, Limits(given.serve, 8))


def test_an_admin_port_in_use_stops_the_start(live: Live) -> None:
    with pytest.raises(ConfigError, match="--admin-port"):
        Live(config(admin_port=live.port), backend())


def test_the_description_says_which_routes_need_a_key(named: Live) -> None:
    paths = json.loads(call(named, "key-of-grafana", "/openapi.json", None).body)["paths"]
    assert "security" in paths["/v1/models"]["get"]
    assert "security" not in paths["/health"]["get"]
    assert "security" not in paths["/"]["get"]
