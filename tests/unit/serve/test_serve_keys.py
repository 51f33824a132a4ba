"""Lines of key files, the ring, quotas and rates, each with a clock of its own where time matters."""

import threading
import time
from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.base.clock import FakeClock
from octavo.base.errors import ConfigError
from octavo.base.rate import Rate
from octavo.cli.main import main
from octavo.serve import keyfile, keys
from octavo.serve.auth import Caller, Guard, Scope
from octavo.serve.errors import Forbidden, RateLimited
from octavo.serve.keyfile import GRANTS, Key, KeyLimits, digest_of, line_of, new_key, parse_line, read_keys
from octavo.serve.keys import KeyRing
from octavo.serve.quota import Quotas, span

LINE = line_of(Key(digest_of(b"secret"), frozenset({Scope.USE}), "alice"))


@given(
    name=st.from_regex(r"[A-Za-z0-9][A-Za-z0-9_.\-]{0,63}", fullmatch=True),
    scopes=st.frozensets(st.sampled_from(sorted(GRANTS)), min_size=1),
    limits=st.builds(KeyLimits, *[st.integers(0, 1 << 40)] * 3),
    secret=st.binary(min_size=1),
)
def test_a_line_says_all_of_a_key(name: str, scopes: frozenset[str], limits: KeyLimits, secret: bytes) -> None:
    key = Key(digest_of(secret), frozenset(GRANTS[scope] for scope in scopes), name, limits)
    assert parse_line(line_of(key)) == key


@given(st.text(max_size=200))
def test_any_other_line_is_a_config_error_that_quotes_nothing(text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_line(text)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "line",
    [
        "sk-a-plain-key",
        "alice:inference:sk-a-plain-key",
        "alice:inference",
        "alice::" + LINE.split(":")[2],
        "alice:everything:" + LINE.split(":")[2],
        "al ice:inference:" + LINE.split(":")[2],
        LINE.upper(),
        LINE[:-1],
        LINE + ":requests=0",
        LINE + ":requests=-5",
        LINE + ":speed=9",
        LINE + ":requests=many",
        LINE + ":requests=1:tokens=2",
    ],
)
def test_lines_at_fault_are_named_by_number(tmp_path: Path, line: str) -> None:
    path = tmp_path / "keys"
    path.write_text(f"# comment\n{LINE}\n{line}\n")
    with pytest.raises(ConfigError, match="line 3") as caught:
        KeyRing([], str(path))
    assert "sk-a-plain-key" not in str(caught.value)


@pytest.mark.parametrize("data", [b"", b"# nothing\n", b"\xff\xfe", b"#" * (keyfile.MAX_FILE_BYTES + 1)])
def test_files_that_cannot_be_used(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "keys").write_bytes(data)
    with pytest.raises(ConfigError):
        KeyRing([], str(tmp_path / "keys"))
    with pytest.raises(ConfigError, match="No such file"):
        KeyRing([], str(tmp_path / "elsewhere"))


def test_a_name_with_two_keys_is_one_tenant_and_one_owner(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    other = line_of(Key(digest_of(b"other"), frozenset({Scope.USE}), "alice"))
    path.write_text(f"{LINE}\n{other}\n")
    ring = KeyRing(["plain-key"], str(path))
    first, second, plain = (ring.find(digest_of(key)) for key in (b"secret", b"other", b"plain-key"))
    assert first is not None
    assert second is not None
    assert plain is not None
    assert first.tenant == second.tenant == "alice"
    assert first.owner == second.owner != plain.owner
    assert ring.tenant_of(first.owner) == "alice"
    assert ring.tenant_of(plain.owner) == plain.tenant
    assert ring.find(digest_of(b"nobody's")) is None
    assert "plain-key" not in repr(vars(ring))


def test_a_near_miss_is_as_far_away_as_any() -> None:
    """What is looked up is a digest keyed with a secret of the process, so no caller can come near to a key."""
    ring = KeyRing(["sk-" + "a" * 40])
    near, far = digest_of(b"sk-" + b"a" * 39 + b"b"), digest_of(b"x")
    assert ring._blind(near)[:4] != ring._blind(digest_of(b"sk-" + b"a" * 40))[:4]
    assert ring.find(near) is ring.find(far) is None
    assert KeyRing()._blind(near) != ring._blind(near), "another process, another secret"


@pytest.mark.slow
def test_the_time_of_a_refusal_says_nothing_about_the_key() -> None:
    """200,000 refusals of keys that share 0 to 39 leading characters: length of the match and time have no order."""
    right = "sk-" + "a" * 37
    ring = KeyRing([right, "another-key"])
    wrong = [(right[:shared] + "#" * (40 - shared)).encode() for shared in range(40)]
    times: list[list[int]] = [[] for _ in wrong]
    random, order = Random(1), list(range(40))
    for _ in range(5000):
        random.shuffle(order)  # the place in the round has a time of its own
        for spent, key in [(times[index], wrong[index]) for index in order]:
            begin = time.perf_counter_ns()
            ring.find(digest_of(key))
            spent.append(time.perf_counter_ns() - begin)
    quiet = [sorted(spent)[len(spent) // 4] for spent in times]
    ranks = [sorted(quiet).index(each) + quiet.count(each) / 2 for each in quiet]  # equal ones share a rank
    mean = sum(ranks) / 40
    spread = sum((rank - mean) ** 2 for rank in ranks) or 1.0
    rho = sum((shared - 19.5) * (rank - mean) for shared, rank in enumerate(ranks)) / (5330 * spread) ** 0.5
    assert abs(rho) < 0.41, f"{rho:.2f}: p < 0.01 for 40 pairs"


def test_keys_change_under_many_readers(tmp_path: Path) -> None:
    clock = FakeClock()
    path = tmp_path / "keys"
    path.write_text(LINE + "\n")
    ring = KeyRing([], str(path), clock)
    stop = threading.Event()
    missed = []

    def read() -> None:
        while not stop.is_set():
            if ring.find(digest_of(b"secret")) is None:
                missed.append(1)

    thread = threading.Thread(target=read)
    thread.start()
    for index in range(15):  # each time it is whole after a moment in which it is empty, long enough for one look
        path.write_text("")
        clock.advance(keys.LOOK_EVERY_S)
        time.sleep(0.01)
        path.write_text(LINE + "\n")
        added = line_of(Key(digest_of(str(index).encode()), frozenset({Scope.USE}), f"n{index}"))
        with path.open("a") as file:
            file.write(added + "\n")
        clock.advance(keys.LOOK_EVERY_S)
        time.sleep(0.01)
    stop.set()
    thread.join()
    assert not missed
    for _ in range(3):
        clock.advance(keys.LOOK_EVERY_S)
        ring.refresh()
    assert ring.find(digest_of(b"14")) is not None


def test_scopes_are_looked_at() -> None:
    guard = Guard(KeyRing(["plain"]), "0.0.0.0")
    request = {"headers": [(b"host", b"x"), (b"authorization", b"Bearer plain")]}
    guard.check(Scope.USE, request)
    guard.check(Scope.METRICS, request)
    guard.check(Scope.DOCS, request)
    with pytest.raises(Forbidden, match="admin"):
        guard.check(Scope.ADMIN, request)


def test_new_keys_are_long_and_never_the_same() -> None:
    made = {new_key() for _ in range(100)}
    assert len(made) == 100
    assert all(len(key) >= 50 and key.isascii() for key in made)


# --- the command


def test_key_new_shows_the_key_once_and_the_line_lets_it_in(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "keys.txt"
    path.write_text(LINE)  # without a line break at its end
    argv = ["key", "new", "bob", "--scopes", "inference,metrics", "--tokens", "10k", "--append", str(path)]
    assert main(argv) == 0
    key = capsys.readouterr().out.strip()
    assert key.encode() not in path.read_bytes()
    assert [each.name for each in read_keys(str(path))] == ["alice", "bob"]
    found = KeyRing([], str(path)).find(digest_of(key.encode()))
    assert found is not None
    assert (found.name, found.limits.tokens) == ("bob", 10_000)
    assert found.scopes == {Scope.USE, Scope.METRICS}


def test_key_new_says_both_and_makes_private_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["key", "new", "--name", "carol"]) == 0
    key, line = capsys.readouterr().out.splitlines()
    assert parse_line(line).digest == digest_of(key.encode())
    assert main(["key", "new", "carol", "--append", str(tmp_path / "fresh")]) == 0
    assert (tmp_path / "fresh").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    "argv",
    [["new"], ["new", "a b"], ["new", "a", "--scopes", "all"], ["old"], ["new", "a", "--append", "/nowhere/keys"]],
)
def test_key_says_what_is_wrong(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["key", *argv]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


# --- quotas and rates


def test_a_bucket_refills_evenly_and_a_debt_is_paid() -> None:
    clock = FakeClock()
    quotas = Quotas(clock.now)
    caller = Caller("t", limits=KeyLimits(requests=6, tokens=600))
    for _ in range(6):
        meter = quotas.meter(caller)
        meter.begin()
        meter.begin()  # another endpoint on behalf of the same request
        meter.prompt(10)
        meter.end()
    with pytest.raises(RateLimited) as caught:
        quotas.meter(caller).begin()
    assert caught.value.retry_after_s == pytest.approx(10)
    clock.advance(10)
    meter = quotas.meter(caller)
    meter.begin()
    meter.prompt(0)
    meter.output(1000)
    meter.end()
    clock.advance(30)
    with pytest.raises(RateLimited, match="tokens") as caught:
        quotas.meter(caller).begin()
    assert 5 < caught.value.retry_after_s < 60
    clock.advance(600)
    quotas.meter(caller).prompt(5000)  # larger than a minute's worth: let in when nothing else was taken
    with pytest.raises(RateLimited):
        quotas.meter(caller).prompt(1)


def test_places_survive_a_change_of_limits() -> None:
    quotas = Quotas(FakeClock().now)
    first = quotas.meter(Caller("t", limits=KeyLimits(concurrent=2)))
    first.begin()
    second = quotas.meter(Caller("t", limits=KeyLimits(concurrent=1)))
    with pytest.raises(RateLimited):
        second.begin()
    second.end()
    first.end()
    first.end()
    second.begin()
    quotas.meter(Caller("other", limits=KeyLimits(concurrent=1))).begin()


def test_many_tenants_are_not_kept_for_ever() -> None:
    quotas = Quotas(FakeClock().now)
    for index in range(20_000):
        quotas.meter(Caller(f"t{index}", limits=KeyLimits(requests=5)))
    assert len(quotas._kept) <= 8192


def test_spans_are_written_as_openai_does() -> None:
    assert [span(each) for each in (0, 0.02, 1, 7.5, 90)] == ["0ms", "20ms", "1s", "7.5s", "1m30s"]


def test_a_rate_follows_what_happens() -> None:
    clock = FakeClock()
    rate = Rate(clock)
    assert rate.wait_s(10) == 5.0
    for _ in range(200):
        clock.advance(0.25)
        rate.note()
    assert rate.per_second() == pytest.approx(4, rel=0.1)
    assert rate.wait_s(40) == pytest.approx(10, rel=0.1)
    assert (rate.wait_s(1), rate.wait_s(10_000)) == (1.0, 60.0)
