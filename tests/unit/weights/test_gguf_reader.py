"""The GGUF header reader against good files, and against files that lie in every place where a number stands."""

import random
import struct
import time
from pathlib import Path

import gguf as library
import numpy as np
import pytest

from octavo.base.errors import ModelFileError
from octavo.weights import gguf as reader
from octavo.weights.gguf import read_gguf
from octavo.weights.gguf_types import BLOCK_TYPES


def good_file(path: Path) -> bytes:
    writer = library.GGUFWriter(path, "qwen2")
    writer.add_uint8("k.u8", 250)
    writer.add_int8("k.i8", -3)
    writer.add_uint16("k.u16", 65000)
    writer.add_int16("k.i16", -300)
    writer.add_uint32("k.u32", 4_000_000_000)
    writer.add_int32("k.i32", -70_000)
    writer.add_uint64("k.u64", 1 << 63)
    writer.add_int64("k.i64", -(1 << 60))
    writer.add_float32("k.f32", 0.25)
    writer.add_float64("k.f64", 0.1)
    writer.add_bool("k.bool", True)
    writer.add_string("k.text", "grüß dich")
    writer.add_array("k.strings", ["a", "", "日本"])
    writer.add_array("k.ints", [1, -2, 3])
    writer.add_array("k.floats", [0.5, -1.5])
    writer.add_array("k.bools", [True, False])
    writer.add_tensor("a.weight", np.arange(12, dtype=np.float32).reshape(3, 4))
    writer.add_tensor("b.weight", np.arange(5, dtype=np.float32))
    rows = library.quants.quantize(np.ones((2, 64), dtype=np.float32), library.GGMLQuantizationType.Q8_0)
    writer.add_tensor("c.weight", rows, raw_dtype=library.GGMLQuantizationType.Q8_0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path.read_bytes()


def refused(path: Path, data: bytes, match: str | None = None) -> None:
    """The bytes must give a ModelFileError that names the file, soon."""
    path.write_bytes(data)
    start = time.process_time()
    with pytest.raises(ModelFileError, match=match) as caught:
        read_gguf(path)
    assert time.process_time() - start < 2.0
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_reads_what_the_library_writes(tmp_path: Path) -> None:
    good_file(tmp_path / "good.gguf")
    file = read_gguf(tmp_path / "good.gguf")
    theirs = library.GGUFReader(tmp_path / "good.gguf")
    for key, field in theirs.fields.items():
        if key.startswith("GGUF."):
            continue
        value = file.metadata[key]
        value = value.tolist() if hasattr(value, "tolist") else value
        assert value == field.contents(), key
        assert type(value) is type(field.contents()), key
    assert list(file.tensors) == [tensor.name for tensor in theirs.tensors]
    for tensor in theirs.tensors:
        ours = file.tensors[tensor.name]
        assert (ours.offset, ours.nbytes) == (tensor.data_offset, tensor.n_bytes)
        assert ours.shape == tuple(int(size) for size in reversed(tensor.shape))
        assert BLOCK_TYPES[ours.qtype].name == tensor.tensor_type.name


def test_every_truncation_is_refused(tmp_path: Path) -> None:
    data = good_file(tmp_path / "good.gguf")
    end = max(tensor.offset + tensor.nbytes for tensor in read_gguf(tmp_path / "good.gguf").tensors.values())
    for length in range(end):  # the file's own padding after that may be missing
        refused(tmp_path / "cut.gguf", data[:length])


def test_flipped_bytes_never_escape_as_another_error(tmp_path: Path) -> None:
    data = good_file(tmp_path / "good.gguf")
    path = tmp_path / "flipped.gguf"
    rng = random.Random(0)
    survivors = 0
    for trial in range(1200):
        broken = bytearray(data)
        for _ in range(1 if trial % 2 else rng.randint(2, 8)):
            broken[rng.randrange(len(data))] = rng.choice((0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)))
        path.write_bytes(broken)
        try:
            file = read_gguf(path)
        except ModelFileError:
            continue
        survivors += 1
        for tensor in file.tensors.values():
            assert 0 <= tensor.offset <= tensor.offset + tensor.nbytes <= len(data)
    assert survivors < 1200


HUGE = (1 << 31, 1 << 32, (1 << 63) - 1, 1 << 63, (1 << 64) - 1)


def header(num_tensors: int = 0, num_keys: int = 0, version: int = 3) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", version, num_tensors, num_keys)


def text(value: bytes) -> bytes:
    return struct.pack("<Q", len(value)) + value


def one_tensor(
    *, name: bytes = b"t", dims: tuple[int, ...] = (32, 2), qtype: int = 0, offset: int = 0, payload: int = 256
) -> bytes:
    entry = text(name) + struct.pack("<I", len(dims)) + struct.pack(f"<{len(dims)}Q", *dims)
    data = header(num_tensors=1) + entry + struct.pack("<IQ", qtype, offset)
    return data + bytes(-len(data) % 32) + bytes(payload)


@pytest.mark.parametrize("huge", HUGE)
def test_huge_counts_are_refused_before_any_allocation(huge: int, tmp_path: Path) -> None:
    path = tmp_path / "huge.gguf"
    refused(path, header(num_tensors=huge) + bytes(64), "tensors")
    refused(path, header(num_keys=huge) + bytes(64), "keys")
    refused(path, header(num_keys=1) + struct.pack("<Q", huge) + bytes(64), "key 0")
    refused(path, header(num_keys=1) + text(b"k") + struct.pack("<IQ", 8, huge) + bytes(64), "string")
    for kind in (0, 6, 7, 8, 12):
        refused(path, header(num_keys=1) + text(b"k") + struct.pack("<IIQ", 9, kind, huge) + bytes(64), "claims")
    refused(path, one_tensor(dims=(huge,)), "dimensions|ends at")
    refused(path, one_tensor(dims=(huge, huge)), "dimensions")
    refused(path, one_tensor(dims=(1 << 31, 1 << 31, 4)), "dimensions")
    refused(path, one_tensor(offset=huge), "aligned|ends at")


def test_a_product_that_wraps_in_64_bits_is_refused(tmp_path: Path) -> None:
    refused(tmp_path / "wrap.gguf", one_tensor(dims=(1 << 32, 1 << 32)), "dimensions")
    refused(tmp_path / "wrap.gguf", one_tensor(dims=(1 << 21, 1 << 21, 1 << 21, 2)), "dimensions")


def test_each_rule_of_the_tensor_table(tmp_path: Path) -> None:
    path = tmp_path / "table.gguf"
    path.write_bytes(one_tensor())
    assert read_gguf(path).tensors["t"].shape == (2, 32)
    refused(path, one_tensor(name=b""), "1 to 256")
    refused(path, one_tensor(name=b"\xff\xfe"), "UTF-8")
    refused(path, one_tensor(dims=()), "0 dimensions")
    refused(path, one_tensor(dims=(1, 1, 1, 1, 1)), "5 dimensions")
    refused(path, one_tensor(dims=(0, 4)), "impossible")
    refused(path, one_tensor(qtype=77), "type 77")
    refused(path, one_tensor(qtype=19), "IQ1_S")
    refused(path, one_tensor(dims=(33,), qtype=8), "multiple of Q8_0")
    refused(path, one_tensor(offset=8), "aligned")
    refused(path, one_tensor(payload=255), "truncated")


def test_overlaps_and_names_given_twice(tmp_path: Path) -> None:
    def two(second: bytes, offset: int) -> bytes:
        data = header(num_tensors=2)
        for name, at in ((b"t", 0), (second, offset)):
            data += text(name) + struct.pack("<IQQIQ", 2, 32, 2, 0, at)
        return data + bytes(-len(data) % 32) + bytes(1024)

    refused(tmp_path / "two.gguf", two(b"u", 224), "overlap")
    refused(tmp_path / "two.gguf", two(b"t", 256), "twice")
    key = text(b"k") + struct.pack("<IB", 0, 1)
    refused(tmp_path / "two.gguf", header(num_keys=2) + key + key, "twice")


@pytest.mark.parametrize("alignment", [0, 1, 4, 24, 33, 1 << 17, (1 << 32) - 1])
def test_alignment_must_be_a_power_of_two_in_bounds(alignment: int, tmp_path: Path) -> None:
    refused(
        tmp_path / "a.gguf",
        header(num_keys=1) + text(b"general.alignment") + struct.pack("<II", 4, alignment),
        "alignment",
    )


def test_foreign_kinds_of_file(tmp_path: Path) -> None:
    refused(tmp_path / "f.gguf", b"", "too short")
    refused(tmp_path / "f.gguf", b"\x7fELF" + bytes(100), "not a GGUF")
    refused(tmp_path / "f.gguf", header(version=1) + bytes(64), "version 1")
    refused(tmp_path / "f.gguf", b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "big-endian")
    refused(tmp_path / "f.gguf", header(num_keys=1) + text(b"k") + struct.pack("<I", 13), "value type 13")
    nested = struct.pack("<IIQ", 9, 9, 1) + bytes(32)
    refused(tmp_path / "f.gguf", header(num_keys=1) + text(b"k") + nested, "nested")
    with pytest.raises(ModelFileError, match="regular"):
        read_gguf(Path("/dev/zero"))
    with pytest.raises(ModelFileError, match="cannot be read"):
        read_gguf(tmp_path / "absent.gguf")


def test_floods_within_the_file_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Counts that the file could hold, but that would take minutes or all memory."""
    count = 200_000
    empty = struct.pack("<IIQ", 9, 8, count) + bytes(8 * count)
    flood = header(num_keys=9) + b"".join(text(b"k%d" % index) + empty for index in range(9))
    refused(tmp_path / "strings.gguf", flood, "1500000")
    monkeypatch.setattr(reader, "MAX_TEXT_BYTES", 1000)
    long = header(num_keys=2) + b"".join(
        text(b"k%d" % index) + struct.pack("<I", 8) + text(bytes(600)) for index in (1, 2)
    )
    refused(tmp_path / "text.gguf", long, "limit")


def test_a_large_vocabulary_is_read_fast(tmp_path: Path) -> None:
    tokens = b"".join(text(b"token%06d" % index) for index in range(300_000))
    data = header(num_keys=1) + text(b"tokenizer.ggml.tokens") + struct.pack("<IIQ", 9, 8, 300_000) + tokens
    (tmp_path / "v.gguf").write_bytes(data)
    start = time.process_time()
    found = read_gguf(tmp_path / "v.gguf").metadata["tokenizer.ggml.tokens"]
    assert time.process_time() - start < 1.0
    assert found[299_999] == "token299999"
