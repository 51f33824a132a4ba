"""Packed weights that a start keeps for the next one."""

import errno
import os

import pytest
import torch
from filelock import FileLock

from octavo.kernels.cpu import packed_file
from octavo.kernels.cpu.loader import native
from octavo.kernels.cpu.pack import linear, pack_values, unpack
from octavo.kernels.cpu.packed_file import PackedFile

module = native()
pytestmark = pytest.mark.skipif(module is None, reason="the CPU kernels are not built")


@pytest.fixture
def machine():
    return module.Machine(2, False, "")


def keep(path, weights):
    kept = PackedFile(path)
    for tag, weight in weights.items():
        assert kept.take(tag) is None
        kept.add(tag, weight)
    thread = kept.keep(least_bytes=1)
    assert thread is not None
    thread.join()


def test_the_next_start_maps_the_same_weights(machine, tmp_path):
    path = tmp_path / "cache" / "model.packed"
    weights = {
        "a": pack_values(machine, torch.randn(37, 70)),
        "b": pack_values(machine, torch.randn(50, 64), "int8"),
        "c": pack_values(machine, torch.randn(16, 96) * 1e-9, "int4"),
    }
    keep(path, weights)
    kept = PackedFile(path)
    for tag, weight in weights.items():
        found = kept.take(tag)
        assert torch.equal(unpack(found), unpack(weight))
        x = torch.randn(3, weight.columns)
        assert torch.equal(
            linear(machine, [(found, 0, 0)], x, weight.rows), linear(machine, [(weight, 0, 0)], x, weight.rows)
        )
    assert kept.take("d") is None
    assert kept.keep(least_bytes=1) is None  # nothing new


def test_other_weights_than_expected_are_packed_again(machine, tmp_path):
    path = tmp_path / "model.packed"
    keep(path, {"a": pack_values(machine, torch.randn(16, 32)), "b": pack_values(machine, torch.randn(16, 32))})
    kept = PackedFile(path)
    assert kept.take("x") is None
    assert kept.take("b") is None  # the order is lost for good


@pytest.mark.parametrize("damage", ["empty", "cut", "noise", "offset", "layout", "rows"])
def test_a_damaged_file_only_means_packing_again(machine, tmp_path, damage):
    path = tmp_path / "model.packed"
    keep(path, {"a": pack_values(machine, torch.randn(16, 32))})
    data = path.read_bytes()
    broken = {
        "empty": b"",
        "cut": data[: data.index(b"\n") + 10],
        "noise": os.urandom(5000),
        "offset": data.replace(b",4096]", b",4100]", 1),
        "rows": data.replace(b",16,", b",15,", 1),
        "layout": data.replace(b'["a",7,', b'["a",9999999,', 1),
    }[damage]
    assert broken != data
    path.write_bytes(broken)
    assert PackedFile(path).take("a") is None


def test_a_full_disk_keeps_no_part(machine, tmp_path, monkeypatch):
    def full(_):
        raise OSError(errno.ENOSPC, "no space left on device")

    monkeypatch.setattr(os, "fsync", full)
    path = tmp_path / "model.packed"
    keep(path, {"a": pack_values(machine, torch.randn(16, 32))})
    assert [each.suffix for each in tmp_path.iterdir()] == [".lock"]


def test_one_of_two_starts_writes_the_file(machine, tmp_path):
    path, weights = tmp_path / "model.packed", {"a": pack_values(machine, torch.randn(16, 32))}
    path.with_suffix(".part").write_bytes(b"what the first has written so far")
    with FileLock(path.with_suffix(".lock")):
        keep(path, weights)
    assert path.with_suffix(".part").read_bytes() == b"what the first has written so far"
    assert not path.exists()
    keep(path, weights)
    assert PackedFile(path).take("a") is not None


def test_small_models_are_not_kept(machine, tmp_path):
    kept = PackedFile(tmp_path / "model.packed")
    kept.add("a", pack_values(machine, torch.randn(16, 32)))
    assert kept.keep() is None
    assert not list(tmp_path.iterdir())


def test_the_oldest_files_make_room(tmp_path, monkeypatch):
    monkeypatch.setattr(packed_file, "FOLDER_BYTES", 2500)
    monkeypatch.setattr(packed_file, "SPARE_BYTES", 0)
    for age, name in ((300, "old"), (200, "middle"), (100, "new")):
        file = tmp_path / f"{name}.packed"
        file.write_bytes(bytes(1000))
        os.utime(file, (1e9 - age, 1e9 - age))
    assert packed_file._make_room(tmp_path, 1000)
    assert [path.stem for path in tmp_path.iterdir()] == ["new"]
    assert not packed_file._make_room(tmp_path, 5000)


def test_the_key_follows_the_files(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    file = tmp_path / "model.gguf"
    file.write_bytes(b"one")
    first = packed_file.packed_file([file], None)._path
    assert first == packed_file.packed_file([file], None)._path
    assert first != packed_file.packed_file([file], "int8")._path
    file.write_bytes(b"other")
    assert first != packed_file.packed_file([file], None)._path
