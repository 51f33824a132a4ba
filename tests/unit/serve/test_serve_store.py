"""What is stored: bounded by age and size, counted once whatever goes wrong, one server a file, and harmless where it
cannot be."""

import asyncio
from pathlib import Path

import pytest

from octavo.base.errors import ConfigError, NotFound, Unavailable
from octavo.serve.store import responses as module
from octavo.serve.store.files import FileStore
from octavo.serve.store.place import Place
from octavo.serve.store.responses import ResponseStore, StoredResponse


def row(id: str, size: int = 100, previous: str | None = None, status: str = "completed") -> StoredResponse:
    return StoredResponse(id, "me", status, previous, b"[]", b"x" * size)


def store(path: Path, max_bytes: int = 1 << 20, max_age_s: float = 1e9) -> ResponseStore:
    return ResponseStore(Place(path, chosen=True), max_age_s=max_age_s, max_bytes=max_bytes)


async def test_the_oldest_go(tmp_path: Path) -> None:
    kept = store(tmp_path / "r", max_bytes=5000)
    for number in range(10):
        await kept.put(row(str(number), 1000))
    for number in range(7):
        with pytest.raises(NotFound):
            await kept.get("me", str(number))
    assert (await kept.get("me", "9")).size == 1258
    await kept.put(row("9", 2000))  # grows
    assert len((await kept.get("me", "9")).response) == 2000
    kept.close()


async def test_the_old_go(tmp_path: Path, monkeypatch) -> None:
    kept = store(tmp_path / "r", max_age_s=60)
    await kept.put(row("a"))
    now = module.time.time()
    monkeypatch.setattr(module.time, "time", lambda: now + 61)
    with pytest.raises(NotFound):
        await kept.get("me", "a")
    kept.close()


async def test_a_chain(tmp_path: Path) -> None:
    kept = store(tmp_path / "r")
    await kept.put(row("a"))
    await kept.put(row("b", previous="a"))
    await kept.put(row("c", previous="b"))
    assert [each.id for each in await kept.chain("me", "c")] == ["c", "b", "a"]
    with pytest.raises(NotFound):
        await kept.chain("other", "c")
    await kept.delete("me", "a")
    with pytest.raises(NotFound):
        await kept.chain("me", "c")
    kept.close()


async def test_what_ran_is_lost_after_a_restart(tmp_path: Path) -> None:
    kept = store(tmp_path / "r")
    await kept.put(row("a", status="in_progress"))
    kept.close()
    kept = store(tmp_path / "r")
    assert (await kept.get("me", "a")).status == "lost"
    kept.close()


def test_one_server_a_file(tmp_path: Path) -> None:
    first = store(tmp_path / "r")
    first.open_now()
    second = store(tmp_path / "r")
    with pytest.raises(ConfigError, match="in use by another server"):
        second.open_now()
    first.close()
    second.open_now()
    second.close()
    assert (tmp_path / "r").stat().st_mode & 0o777 == 0o600


async def test_a_usual_place_that_cannot_be(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    kept = ResponseStore(Place(tmp_path / "file" / "r", chosen=False), max_age_s=1, max_bytes=1)
    assert not await kept.usable()
    await kept.put(row("a"))
    with pytest.raises(NotFound):
        await kept.get("me", "a")
    kept.close()
    for path in (tmp_path / "file" / "r", tmp_path / ("r" * 300)):
        with pytest.raises(ConfigError, match="cannot be used"):
            store(path).open_now()


async def test_a_file_that_is_no_database(tmp_path: Path) -> None:
    (tmp_path / "r").write_bytes(b"nonsense" * 1000)
    with pytest.raises(ConfigError, match="cannot be used"):
        store(tmp_path / "r").open_now()


async def test_deleted_twice_at_once_counts_once(tmp_path: Path) -> None:
    kept = store(tmp_path / "r")
    files = FileStore(Place(tmp_path / "files", chosen=True), max_file=1000, max_total=1000)
    upload = await files.create("me", "a", "batch")
    await upload.write(b"x" * 600)
    id = (await upload.finish()).id
    await kept.put(row("a"))
    for delete in (lambda: kept.delete("me", "a"), lambda: files.delete("me", id)):
        ends = await asyncio.gather(delete(), delete(), return_exceptions=True)
        assert sorted(type(end) for end in ends if end) == [NotFound]
    assert (kept._total, files._kept, files.writing) == (0, 0, 0)
    kept.close()
    files.close()


async def test_a_file_that_cannot_be_noted_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = FileStore(Place(tmp_path, chosen=True), max_file=1000, max_total=1000)
    upload = await files.create("me", "a", "batch")
    await upload.write(b"x" * 600)

    async def full(_: object) -> None:
        raise Unavailable("full")

    monkeypatch.setattr(files, "add", full)
    with pytest.raises(Unavailable):
        await upload.finish()
    upload.abort()
    assert files.writing == 0
    assert not list(tmp_path.glob("file-*"))
    files.close()
