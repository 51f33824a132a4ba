import pytest

from octavo.base.errors import ConfigError, UserError
from octavo.serve.auth import NOBODY, Guard, Scope, is_loopback
from octavo.serve.errors import Forbidden, Unauthorized
from octavo.serve.keys import KeyRing

HOST = (b"host", b"127.0.0.1:8000")


def request(*headers: tuple[bytes, bytes], host: bool = True) -> dict[str, object]:
    return {"headers": [HOST, *headers] if host else list(headers)}


def bearer(key: bytes) -> tuple[bytes, bytes]:
    return (b"authorization", b"Bearer " + key)


def test_right_key_by_either_header() -> None:
    guard = Guard(KeyRing(["s3cret"]), "0.0.0.0")
    assert guard.check(Scope.USE, request(bearer(b"s3cret"))).tenant == ""
    assert guard.check(Scope.USE, request((b"authorization", b"bearer s3cret"))).tenant == ""
    assert guard.check(Scope.USE, request((b"x-api-key", b"s3cret"))).tenant == ""


@pytest.mark.parametrize(
    "headers",
    [
        (),
        (bearer(b"wrong"),),
        (bearer(b"s3cre"),),
        (bearer(b"s3cret2"),),
        (bearer(b""),),
        ((b"authorization", b"Basic s3cret"),),
        ((b"authorization", b"s3cret"),),
        (bearer(b"s3cret"), bearer(b"s3cret")),
        (bearer(b"wrong"), (b"x-api-key", b"s3cret")),
        ((b"x-api-key", b""),),
        ((b"x-api-key", b"\xff\x00"),),
        ((b"cookie", b"key=s3cret"),),
    ],
)
def test_wrong_keys(headers: tuple[tuple[bytes, bytes], ...]) -> None:
    with pytest.raises(Unauthorized):
        Guard(KeyRing(["s3cret"]), "0.0.0.0").check(Scope.USE, request(*headers))


def test_open_routes_need_no_key() -> None:
    assert Guard(KeyRing(["s3cret"]), "0.0.0.0").check(Scope.OPEN, request()) is NOBODY


@pytest.mark.parametrize("key", ["", " ", "a ", "\tb"])
def test_keys_that_would_let_anyone_in(key: str) -> None:
    with pytest.raises(ConfigError):
        KeyRing([key])


def test_tenants_differ_by_key_and_do_not_show_it() -> None:
    guard = Guard(KeyRing(["alpha-key", "beta-key"]), "0.0.0.0")
    one = guard.check(Scope.USE, request(bearer(b"alpha-key"))).tenant
    two = guard.check(Scope.USE, request(bearer(b"beta-key"))).tenant
    assert one
    assert one != two
    assert "alpha" not in one


@pytest.mark.parametrize(
    "host", [b"localhost:8000", b"127.0.0.1", b"[::1]:8000", b"[::1]", b"LOCALHOST", b"a.localhost"]
)
def test_loopback_names_pass(host: bytes) -> None:
    Guard(KeyRing(), "127.0.0.1").check(Scope.USE, request((b"host", host), host=False))


@pytest.mark.parametrize("host", [b"evil.example", b"evil.example:8000", b"127.0.0.1.evil.example", b"10.0.0.1:8000"])
def test_rebinding_names_are_refused_on_loopback(host: bytes) -> None:
    with pytest.raises(Forbidden):
        Guard(KeyRing(), "127.0.0.1").check(Scope.USE, request((b"host", host), host=False))


def test_any_name_reaches_a_public_address() -> None:
    Guard(KeyRing(), "0.0.0.0", insecure=True).check(Scope.USE, request((b"host", b"gpu-box:8000"), host=False))


@pytest.mark.parametrize("host", [b"a b", b"a/b", b"a@b", b"a\\b", b"a#b"])
def test_malformed_host(host: bytes) -> None:
    with pytest.raises(UserError):
        Guard(KeyRing(["k"]), "0.0.0.0").check(Scope.USE, request((b"host", host), bearer(b"k"), host=False))


def test_two_hosts() -> None:
    with pytest.raises(UserError, match="one Host"):
        Guard(KeyRing(), "0.0.0.0", insecure=True).check(Scope.USE, request(HOST))


@pytest.mark.parametrize(
    ("origin", "site", "passes"),
    [
        (b"http://127.0.0.1:8000", b"", True),
        (b"http://evil.example", b"", False),
        (b"https://127.0.0.1:9000", b"cross-site", False),
        (b"null", b"", False),
        (b"https://proxy.example", b"same-origin", True),
        (b"vscode-webview://abc", b"", True),
        (b"tauri://localhost", b"", True),
    ],
)
def test_origins(origin: bytes, site: bytes, passes: bool) -> None:
    headers = [(b"origin", origin)] + ([(b"sec-fetch-site", site)] if site else [])
    for guard, extra in ((Guard(KeyRing(), "127.0.0.1"), []), (Guard(KeyRing(["k"]), "127.0.0.1"), [bearer(b"k")])):
        if passes:
            guard.check(Scope.USE, request(*headers, *extra))
        else:
            with pytest.raises(Forbidden):
                guard.check(Scope.USE, request(*headers, *extra))


def test_loopback_names() -> None:
    assert is_loopback("::1")
    assert is_loopback("127.9.9.9")
    assert not is_loopback("0.0.0.0")
    assert not is_loopback("example.org")
