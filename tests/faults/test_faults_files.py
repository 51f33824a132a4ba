"""Files that are not what they were: weights, configurations, tokenizers, what earlier starts remembered."""

import sys
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
import torch
from drills import drill
from safetensors.numpy import load_file, save_file

sys.path.insert(0, str(Path(__file__).parents[1] / "unit" / "weights"))

from weights_support import tiny_model, write_gguf

from octavo.base.config import CacheConfig, EngineConfig, ModelConfig
from octavo.base.errors import ConfigError, ModelFileError, NotFound, Unavailable
from octavo.base.wire import EngineRequest, Sampling
from octavo.engine.assemble import assemble
from octavo.kernels.cpu.loader import native
from octavo.kernels.cpu.pack import pack_values, unpack
from octavo.kernels.cpu.packed_file import PackedFile
from octavo.sched.finish import BAD_LOGITS
from octavo.serve.store.place import Place
from octavo.serve.store.responses import ResponseStore, StoredResponse
from octavo.testing.tiny import tiny
from octavo.text.load import load_text
from octavo.weights.facts import read_model
from octavo.worker import remembered
from octavo.worker.capacity import Need


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny("llama").save(tmp_path_factory.mktemp("model"))


def config(folder: Path) -> EngineConfig:
    model = ModelConfig(model=str(folder), max_model_len=64, dtype="float32")
    return EngineConfig(model=model, cache=CacheConfig(num_gpu_blocks_override=32))


def answer(folder: Path) -> tuple[list[int], str | None, str | None]:
    """A few tokens of the model, through all of the engine; and its text side is read too."""
    load_text(read_model(config(folder).model), config(folder).model)
    core = assemble(config(folder)).core
    core.add(EngineRequest("a", [5, 6, 7], Sampling(seed=1, max_tokens=6, temperature=0.0)))
    tokens: list[int] = []
    last = None
    while core.has_work:
        outputs = core.step()
        for output in outputs.each() if outputs else ():
            tokens += output.tokens
            last = output
    core.shutdown()
    assert last is not None
    return tokens, last.finish, last.error


def damage(data: bytes, random: Random) -> bytes:
    """Cut short, with a run of other bytes near its beginning, or empty."""
    kind = random.randrange(4)
    if kind == 0:
        return data[: random.randrange(len(data))]
    if kind == 1:
        return b""
    place = random.randrange(min(len(data) - 8, 2000))
    return data[:place] + random.randbytes(random.choice([1, 2, 8])) + data[place + 8 :]


@pytest.fixture
def restored(folder: Path) -> Iterator[Path]:
    kept = {path: path.read_bytes() for path in folder.iterdir()}
    yield folder
    for path, data in kept.items():
        path.write_bytes(data)


def damaged(name: str, path: Path, model: Path) -> None:
    """`path` is damaged again and again while `model`, which it is or belongs to, is started."""
    what = f"`{name}` cut short or with other bytes near its beginning"
    with drill(f"F16 {name}", what, "refused in one line, or read as it is; nothing else") as d:
        whole = path.read_bytes()
        refused: list[str] = []
        for random in d.seeds():
            for _ in range(4):
                path.write_bytes(damage(whole, random))
                try:
                    answer(model)
                except (ConfigError, ModelFileError) as error:
                    refused.append(str(error))
        assert refused
        assert not [line for line in refused if "\n" in line or "Traceback" in line]
        d.note = f"{len(refused)} of {4 * d.runs} refused"
        path.write_bytes(whole)
        assert answer(model)[1] == "length"


@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "tokenizer.json"])
def test_a_damaged_file(restored: Path, name: str) -> None:
    damaged(name, restored / name, restored)


def test_damaged_gguf(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    write_gguf(path, "llama", tiny_model("llama"), qtype="Q8_0")
    damaged("model.gguf", path, path)


def start(path: Path, weights: dict[str, Any], seconds: float) -> None:
    """As a start does it: take what is packed, else pack and keep; each of them with a pause before."""
    kept = PackedFile(path)
    time.sleep(seconds)
    for tag, weight in weights.items():
        found = kept.take(tag)
        if found is None:
            kept.add(tag, weight)
        else:
            assert torch.equal(unpack(found), unpack(weight))
    time.sleep(seconds)
    thread = kept.keep(least_bytes=1)
    if thread is not None:
        thread.join()


@pytest.mark.skipif(native() is None, reason="the CPU kernels are not built")
def test_starts_at_once_share_a_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    what = "six starts at once pack the same weights into one cache, and measure the same"
    with drill("F22 cache", what, "each has the right weights; one file is left, and it is whole") as d:
        module = native()
        assert module is not None
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
        machine = module.Machine(1, False, "")
        weights = {f"w{i}": pack_values(machine, torch.randn(16 * i, 256), "int8") for i in range(1, 13)}
        need, key = Need(*([1 << 20] * len(Need.__struct_fields__))), remembered.key_of("a", 1)
        for random in d.seeds():
            path = tmp_path / f"{d.runs}" / "model.packed"
            with ThreadPoolExecutor(6) as pool:
                starts = [pool.submit(start, path, weights, random.random() * 0.02) for _ in range(6)]
                starts += [pool.submit(remembered.remember, key, need) for _ in range(6)]
                for each in starts:
                    each.result()
            assert sorted(each.name for each in path.parent.iterdir()) == ["model.lock", "model.packed"]
            kept = PackedFile(path)
            assert all(torch.equal(unpack(kept.take(tag)), unpack(weight)) for tag, weight in weights.items())
            assert [each.suffix for each in (tmp_path / "octavo" / "plans").iterdir()] == [".json"]
            assert remembered.recall(key) == need


@pytest.mark.skipif(native() is None, reason="the CPU kernels are not built")
def test_packed_weights_that_are_damaged(tmp_path: Path) -> None:
    """What describes the matrices, and the file's length; the numbers have no checksum, like those of weight files."""
    with drill("F16 packed", "the file of weights packed by an earlier start is damaged", "packed again") as d:
        module = native()
        assert module is not None
        machine, path = module.Machine(1, False, ""), tmp_path / "model.packed"
        weights = {f"w{i}": pack_values(machine, torch.randn(16 * i, 64), "int8") for i in range(1, 9)}
        kept = PackedFile(path)
        for tag, weight in weights.items():
            kept.add(tag, weight)
        thread = kept.keep(least_bytes=1)
        assert thread is not None
        thread.join()
        whole = path.read_bytes()
        described = whole.index(b"\n")
        for random in d.seeds():
            for _ in range(20):
                place = random.randrange(described)
                broken = [whole[: random.randrange(len(whole) - 4096)], b"", whole[:place] + b"7" + whole[place + 1 :]]
                broken += [whole[:place] + random.randbytes(8) + whole[place + 8 :], random.randbytes(5000)]
                path.write_bytes(data := random.choice(broken))
                assert data == whole or PackedFile(path).take("w1") is None


async def test_a_damaged_store(tmp_path: Path) -> None:
    promise = "what cannot be read is said: no start, 503 or 404; nothing else"
    with drill("F16 store", "the file of stored responses is cut short or has other bytes somewhere", promise) as d:
        path = tmp_path / "responses.sqlite"
        ids = [f"resp_{i}" for i in range(60)]
        store = responses(path)
        for id in ids:
            await store.put(StoredResponse(id, "owner", "completed", None, b"[]", b'"' + 2000 * b"x" + b'"'))
        store.close()
        whole = path.read_bytes()
        outcomes: Counter[str] = Counter()
        said: list[str] = []
        for random in d.seeds():
            for side in ("-wal", "-shm"):
                path.with_name(path.name + side).unlink(missing_ok=True)
            place = random.randrange(len(whole) - 600)
            rest = random.choice([b"", random.randbytes(8) + whole[place + 8 :], bytes(512) + whole[place + 512 :]])
            path.write_bytes(whole[:place] + rest)
            store = responses(path)
            try:
                store.open_now()
            except ConfigError as error:
                said.append(str(error))
            else:
                for id in random.sample(ids, 20):
                    try:
                        await store.get("owner", id)
                        await store.put(StoredResponse(id, "owner", "completed", None, b"[]", b"{}"))
                        outcomes["answered"] += 1
                    except (NotFound, Unavailable) as error:
                        outcomes[str(error.status)] += 1
            store.close()
        assert not [line for line in said if "\n" in line]
        outcomes["not opened"] = len(said)
        d.note = ", ".join(f"{count} {outcome}" for outcome, count in sorted(outcomes.items()))


def responses(path: Path) -> ResponseStore:
    return ResponseStore(Place(path, chosen=True), max_age_s=3600.0, max_bytes=1 << 30)


def test_weights_that_are_no_numbers(restored: Path) -> None:
    promise = "the request ends with its own error, the engine lives"
    with drill("F16 NaN", "a NaN or an infinity in the weights", promise) as d:
        path = restored / "model.safetensors"
        whole = load_file(path)
        names = sorted(name for name in whole if ".layers.1." in name and whole[name].ndim == 2)
        for random in d.seeds():
            name = random.choice(names)
            damaged = whole[name].copy()
            damaged[random.randrange(len(damaged)) :] = random.choice([np.nan, np.inf])
            save_file({**whole, name: damaged}, path, metadata={"format": "pt"})
            tokens, finish, error = answer(restored)
            assert (tokens, finish, error) == ([], "error", BAD_LOGITS), name


def test_what_was_remembered_is_damaged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with drill("F16 cache", "the file of an earlier start's measurement is damaged", "measured again") as d:
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
        need = Need(*([1 << 20] * len(Need.__struct_fields__)))
        key = remembered.key_of("a", 1)
        remembered.remember(key, need)
        assert remembered.recall(key) == need
        path = next((tmp_path / "octavo" / "plans").iterdir())
        whole = path.read_bytes()
        for random in d.seeds():
            path.write_bytes(whole[: random.randrange(len(whole))])
            assert remembered.recall(key) is None
            path.write_bytes(random.randbytes(40))
            assert remembered.recall(key) is None
        path.unlink()
        path.mkdir()
        assert remembered.recall(key) is None
        remembered.remember(key, need)
