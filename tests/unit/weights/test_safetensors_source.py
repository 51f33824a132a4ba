"""Safetensors: good files of one and of several shards, and headers that lie (badinputs F01, F05)."""

import json
import os
import pickle
import random
import struct
import time
import zipfile
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from octavo.base.errors import ModelFileError
from octavo.weights.folder import shard_map, weight_files
from octavo.weights.safetensors_file import read_safetensors
from octavo.weights.source_safetensors import SafetensorsSource


def sample() -> dict[str, torch.Tensor]:
    torch.manual_seed(1)
    return {
        "a.weight": torch.randn(3, 5),
        "b.weight": torch.randn(4, 2).bfloat16(),
        "c.weight": torch.randn(7).half(),
        "empty": torch.empty(0, 4),
        "scalar": torch.tensor(2.5),
        "position_ids": torch.arange(4),
    }


def refused(path: Path, data: bytes, match: str | None = None) -> None:
    path.write_bytes(data)
    start = time.process_time()
    with pytest.raises(ModelFileError, match=match) as caught:
        read_safetensors(path)
    assert time.process_time() - start < 2.0
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def with_header(header: object, data: bytes = bytes(16)) -> bytes:
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(raw)) + raw + data


def test_tensors_come_out_as_they_went_in(tmp_path: Path) -> None:
    tensors = sample()
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt", "shape": "not a shape"})
    found = dict(SafetensorsSource((tmp_path / "model.safetensors",)).tensors)
    assert found.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert found[name].shape == tuple(tensor.shape)
        if tensor.is_floating_point():
            loaded = found[name].load(tensor.dtype)
            assert torch.equal(loaded, tensor)
            assert torch.equal(found[name].load(torch.float32), tensor.float())
            loaded.zero_()  # the caller's memory: the next load is not touched, and nothing crashes
            assert torch.equal(found[name].load(tensor.dtype), tensor)
            assert torch.equal(found[name].raw().flatten(), tensor.flatten().view(torch.uint8))
    with pytest.raises(ModelFileError, match="I64"):
        found["position_ids"].load(torch.float32)


def test_an_odd_header_length_leaves_data_unaligned_but_readable(tmp_path: Path) -> None:
    values = torch.randn(4)
    header = {"x": {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}}
    for spaces in range(8):
        raw = json.dumps(header).encode() + b" " * spaces
        path = tmp_path / f"{spaces}.safetensors"
        path.write_bytes(with_header(raw, values.numpy().tobytes()))
        assert torch.equal(dict(SafetensorsSource((path,)).tensors)["x"].load(torch.float32), values)


def test_shards_follow_the_index(tmp_path: Path) -> None:
    save_file({"a": torch.ones(2), "stale": torch.zeros(2)}, tmp_path / "model-00001-of-00002.safetensors")
    save_file({"b": torch.full((2,), 2.0)}, tmp_path / "model-00002-of-00002.safetensors")
    index = tmp_path / "model.safetensors.index.json"
    owners = {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}
    index.write_text(json.dumps({"metadata": {"total_size": 16}, "weight_map": owners}))
    kind, paths = weight_files(tmp_path)
    assert kind == "safetensors"
    found = {name: entry.load(torch.float32).tolist() for name, entry in SafetensorsSource(tuple(paths)).tensors}
    assert found == {"a": [1.0, 1.0], "b": [2.0, 2.0]}
    index.write_text(json.dumps({"weight_map": owners | {"c": "model-00002-of-00002.safetensors"}}))
    with pytest.raises(ModelFileError, match="'c', which its shard does not hold"):
        SafetensorsSource(tuple(paths))
    (tmp_path / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(ModelFileError, match=r"00002-of-00002.*missing"):
        weight_files(tmp_path)


@pytest.mark.parametrize(
    "name",
    [
        "../x.safetensors",
        "/etc/x.safetensors",
        "a/b.safetensors",
        "a\\b.safetensors",
        ".safetensors",
        "x.bin",
        7,
        "x" * 300 + ".safetensors",
    ],
)
def test_an_index_cannot_point_outside(name: object, tmp_path: Path) -> None:
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"a": name}}))
    with pytest.raises(ModelFileError, match="no plain"):
        shard_map(index)


@pytest.mark.parametrize(
    "text", ["[]", "{}", '{"weight_map": []}', '{"weight_map": {}}', "{", '{"a":1,"a":2}', "[" * 99999]
)
def test_a_broken_index_is_refused(text: str, tmp_path: Path) -> None:
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(text)
    with pytest.raises(ModelFileError, match="index"):
        shard_map(index)


def test_header_lengths_that_lie(tmp_path: Path) -> None:
    path = tmp_path / "lie.safetensors"
    size = 8 + 64
    for length in ((1 << 63) - 1, (1 << 64) - 1, 0, 1, size, size + 1, 65, 1 << 40):
        refused(path, struct.pack("<Q", length) + b"{" + b" " * 63, "header")
    refused(path, b"", "header")
    refused(path, bytes(7), "header")


def test_headers_that_lie(tmp_path: Path) -> None:
    path = tmp_path / "lie.safetensors"
    good = {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}
    path.write_bytes(with_header({"x": good}))
    assert read_safetensors(path)["x"].shape == (4,)
    for raw in (b"{", b"[]", b"null", b'"x"', b"[" * 5000, b'{"x":' * 5000, b"\xff\xfe{}", b'{"x":1}'):
        refused(path, with_header(raw), "header")
    for change in (
        {"dtype": "F7"},
        {"dtype": 1},
        {"shape": [5]},
        {"shape": [-4]},
        {"shape": [1 << 62, 1 << 62]},
        {"shape": [1 << 70]},
        {"shape": [1] * 9},
        {"shape": "4"},
        {"data_offsets": [0, 17]},
        {"data_offsets": [16, 0]},
        {"data_offsets": [-16, 0]},
        {"data_offsets": [0]},
        {"data_offsets": [1 << 63, (1 << 63) + 16]},
        {"data_offsets": [4, 20]},
    ):
        refused(path, with_header({"x": good | change}))
    half = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}
    refused(path, with_header({"x": half}), "8 of 16")  # a hole at the end
    refused(path, with_header({"x": half | {"data_offsets": [8, 16]}}), "8 of 16")  # and one at the beginning
    refused(path, with_header({"x": half, "y": half}), "join up")
    refused(path, with_header({"x": good, "y": half | {"data_offsets": [8, 16]}}), "join up")
    twice = (
        b'{"x":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"x":{"dtype":"F32","shape":[2],"data_offsets":[8,16]}}'
    )
    refused(path, with_header(twice), "data bytes")


def test_every_truncation_and_many_flips(tmp_path: Path) -> None:
    save_file({name: tensor for name, tensor in sample().items() if name != "empty"}, tmp_path / "good.safetensors")
    data = (tmp_path / "good.safetensors").read_bytes()
    for length in range(len(data)):
        refused(tmp_path / "cut.safetensors", data[:length])
    rng = random.Random(0)
    path = tmp_path / "flip.safetensors"
    for _ in range(600):
        broken = bytearray(data)
        broken[rng.randrange(len(data))] = rng.randrange(256)
        path.write_bytes(broken)
        try:
            tensors = read_safetensors(path)
        except ModelFileError:
            continue
        assert all(tensor.offset + tensor.nbytes <= len(data) for tensor in tensors.values())


class Canary:
    """Runs a command when unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, ...]:
        return os.system, (f"touch {self.path}",)


@pytest.mark.parametrize("protocol", [2, 4, 5])
@pytest.mark.parametrize("zipped", [False, True])
def test_pickle_is_refused_by_name_and_by_magic(protocol: int, zipped: bool, tmp_path: Path) -> None:
    canary = tmp_path / "canary"
    payload = pickle.dumps({"weight": Canary(canary)}, protocol=protocol)
    if zipped:
        with zipfile.ZipFile(tmp_path / "z", "w") as archive:
            archive.writestr("archive/data.pkl", payload)
        payload = (tmp_path / "z").read_bytes()
    for name in ("pytorch_model.bin", "model.pt", "model.ckpt", "model.pth"):
        folder = tmp_path / name.replace(".", "_")
        folder.mkdir()
        (folder / name).write_bytes(payload)
        with pytest.raises(ModelFileError, match="pickle"):
            weight_files(folder)
    refused(tmp_path / "model.safetensors", payload, "pickle")
    assert not canary.exists()


def test_a_header_of_640_bytes_is_no_pickle(tmp_path: Path) -> None:
    """Its first two bytes are those of a pickle of protocol 2."""
    raw = json.dumps({"x": {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}}).encode()
    for length in (0x280, 0x380, 0x480, 0x580, 0x10280):
        path = tmp_path / f"{length}.safetensors"
        path.write_bytes(with_header(raw.ljust(length)))
        assert read_safetensors(path)["x"].shape == (4,)
