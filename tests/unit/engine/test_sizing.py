import pytest

from octavo.base.config import CacheConfig
from octavo.base.errors import ConfigError
from octavo.base.specs import KVSpec
from octavo.engine.sizing import GIB, asked_bytes, one_block_bytes, size

FULL = KVSpec(2, 64)
SLIDING = KVSpec(2, 64, 512)
GEMMA = [SLIDING] * 5 + [FULL]  # one full layer to five sliding ones: six groups of one layer


def cut(specs, num_blocks, *, length=4096, block_size=16):
    one = one_block_bytes(specs, block_size, "float32")
    return size(
        specs, dtype="float32", block_size=block_size, capacity=num_blocks * one + one - 1, max_model_len=length
    )


def test_one_block_is_keys_and_values_of_all_layers_of_a_group():
    assert one_block_bytes([FULL] * 3, 16, "float32") == 3 * 2 * 2 * 16 * 64 * 4
    assert one_block_bytes([FULL] * 3, 16, "bfloat16") == 3 * 2 * 2 * 16 * 64 * 2
    assert one_block_bytes(GEMMA, 16, "float32") == 2 * 2 * 16 * 64 * 4


def test_enough_memory_changes_nothing():
    sized = cut([FULL] * 3, 1 + 256)
    assert sized.layout.num_blocks == 257
    assert sized.max_model_len == 4096
    assert sized.notes == []
    assert sized.concurrency(4096) == 1.0
    assert sized.concurrency(16) == 256.0
    assert sized.tokens() == 4096
    assert sized.bytes_per_token == 3 * 2 * 2 * 64 * 4


def test_a_context_that_does_not_fit_is_fitted_with_one_line():
    sized = cut([FULL] * 3, 1 + 100)
    assert sized.max_model_len == 1601  # the last token is never computed
    assert len(sized.notes) == 1
    assert sized.notes[0].startswith("max_model_len 1601: 4096 tokens need")
    assert "\n" not in sized.notes[0]


def test_the_last_token_needs_no_place():
    assert cut([FULL], 1 + 255, length=4081).max_model_len == 4081
    assert cut([FULL], 1 + 255, length=4082).max_model_len == 4081


@pytest.mark.parametrize("specs", [[FULL], [FULL] * 7, GEMMA])
def test_one_row_of_blocks_is_enough_to_start(specs):
    groups = len(cut(specs, 5000).layout.groups)
    assert cut(specs, groups + 1).max_model_len == 17
    with pytest.raises(ConfigError, match="no room for the KV cache") as caught:
        cut(specs, groups)
    assert "\n" not in str(caught.value)


def test_sliding_groups_stop_growing_at_their_window():
    short, long = cut(GEMMA, 10_001, length=1 << 20), cut(GEMMA, 10_001, length=1 << 14)
    one = 1 / long.concurrency(8192)
    two = 1 / long.concurrency(16_384)
    # Twice the length costs only the full group's 512 blocks more.
    assert (two - one) * 10_000 == pytest.approx(512)
    assert short.max_model_len > 10_000 * 16 // 6 * 5
    assert long.bytes_per_token == 2 * 2 * 64 * 4


def test_sliding_groups_within_their_window_count_like_full_ones():
    assert cut(GEMMA, 601).concurrency(160) == pytest.approx(600 / 60)


def test_negative_capacity_is_an_error_not_a_crash():
    with pytest.raises(ConfigError, match="0 B are left"):
        size([FULL], dtype="float32", block_size=16, capacity=-5, max_model_len=10)


def test_mixed_shapes_are_a_config_error():
    with pytest.raises(ConfigError, match="KV shape"):
        one_block_bytes([FULL, KVSpec(4, 64)], 16, "float32")


@pytest.mark.parametrize(
    ("cache", "device", "expected"),
    [
        (CacheConfig(), "cpu", None),
        (CacheConfig(kv_cache_memory_bytes=12345), "cpu", 12345),
        (CacheConfig(cpu_kvcache_space=0.5), "cpu", GIB // 2),
        (CacheConfig(cpu_kvcache_space=0.5), "cuda", None),
        (CacheConfig(num_gpu_blocks_override=7, kv_cache_memory_bytes=1), "cpu", 700),
    ],
)
def test_what_the_operator_asked_for(cache, device, expected):
    assert asked_bytes(cache, device, 100) == expected
