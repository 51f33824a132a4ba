import numpy as np
import pytest
import torch

from octavo.kernels.ref.sample import forbid
from octavo.worker.sample.bitmask import BitMask


def send(arrays):
    return [torch.from_numpy(array.reshape(-1).copy()) for array in arrays]


@pytest.mark.parametrize("vocab_size", [1, 31, 32, 33, 300])
@pytest.mark.parametrize("rows", [[0], [1, 3], [0, 1, 2, 3], [2, 3, 0, 1], [3, 1]])
def test_only_masked_rows_change_and_only_forbidden_tokens_go(vocab_size, rows):
    rng = np.random.default_rng(vocab_size)
    logits = torch.from_numpy(rng.standard_normal((4, vocab_size)).astype(np.float32))
    masks = rng.integers(-(1 << 31), 1 << 31, (len(rows), -(-vocab_size // 32)), dtype=np.int64).astype(np.int32)
    bits = np.unpackbits(masks.view(np.uint8), axis=1, bitorder="little")[:, :vocab_size].astype(bool)
    expected = logits.clone()
    for place, row in enumerate(rows):
        expected[row][torch.from_numpy(~bits[place])] = -float("inf")
    BitMask(vocab_size, send, forbid).apply(logits, (np.array(rows, dtype=np.int32), masks))
    assert torch.equal(logits, expected)


def test_masks_of_another_shape_are_a_failed_step():
    rule = BitMask(64, send, forbid)
    with pytest.raises(ValueError):
        rule.apply(torch.zeros(1, 64), (np.zeros(1, dtype=np.int32), np.zeros((1, 3), dtype=np.int32)))
