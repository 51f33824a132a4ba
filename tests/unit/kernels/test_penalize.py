"""Penalties: every implementation against words of plain Python; Triton's interpreted where there is no GPU."""

from collections import Counter

import numpy as np
import pytest
import torch

from octavo.kernels.context import Said
from octavo.kernels.ref import penalize as ref

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
ASKED = [  # repetition, frequency, presence
    (1.0, 0.0, 0.0),
    (1.3, 0.0, 0.0),
    (0.7, 0.0, 0.0),
    (1.0, 0.5, 0.0),
    (1.0, 0.0, -1.5),
    (1.2, 0.25, 0.75),
]


def triton():
    pytest.importorskip("triton")
    from octavo.kernels.triton.penalize import penalize

    return penalize


PENALIZE = {"ref": lambda: ref.penalize, "triton": triton}


def expected(logits, line, num_prompt, asked):
    repetition, frequency, presence = asked
    after = logits.astype(np.float64).copy()
    for token in set(line):
        after[token] = after[token] / repetition if after[token] > 0 else after[token] * repetition
    for token, times in Counter(line[num_prompt:]).items():
        after[token] -= frequency * times + presence
    return after


@pytest.mark.parametrize("name", PENALIZE)
@pytest.mark.parametrize(("vocab", "longest"), [(7, 30), (900, 600), (5000, 9000)])
def test_what_was_said_is_held_against_it(name, vocab, longest):
    rng = np.random.default_rng(longest)
    count = len(ASKED)
    lines = rng.integers(0, vocab, (count + 2, longest)).astype(np.int32)
    rows = rng.permutation(count + 2)[:count]
    lengths = rng.integers(1, longest + 1, count)
    prompts = [int(rng.integers(0, length + 1)) for length in lengths]
    logits = rng.normal(0, 3, (count, vocab)).astype(np.float32)
    logits[:, ::5] = -np.inf
    floats = torch.tensor(ASKED, dtype=torch.float32)
    columns = torch.cat([floats.view(torch.int32), torch.tensor(prompts, dtype=torch.int32)[:, None]], 1).to(DEVICE)
    floats = columns[:, :3].view(torch.float32)
    said = Said(
        torch.from_numpy(lines).to(DEVICE),
        torch.from_numpy(rows).to(DEVICE),
        torch.from_numpy(lengths).to(DEVICE),
        columns[:, 3],
        *floats.unbind(1),
    )
    given, counts = torch.from_numpy(logits).to(DEVICE), torch.zeros(count, vocab, dtype=torch.int32, device=DEVICE)
    for turn in range(2):  # the second finds the buffer as the first did
        fresh = given.clone()
        PENALIZE[name]()(fresh, counts, said)
        for row, asked in enumerate(ASKED):
            want = expected(logits[row], lines[rows[row], : lengths[row]].tolist(), prompts[row], asked)
            np.testing.assert_allclose(fresh[row].cpu().numpy(), want, rtol=1e-5, atol=1e-5, err_msg=f"{turn} {asked}")
        assert not counts.any()
