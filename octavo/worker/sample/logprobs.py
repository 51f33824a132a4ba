"""Log-probabilities of the model's own distribution, before any rule; what vLLM calls raw_logprobs."""

import numpy as np
import torch
from torch import Tensor

from octavo.base import scores
from octavo.base.params import MAX_LOGPROBS
from octavo.kernels.ops import Describe
from octavo.worker.sample.step import slabs
from octavo.worker.staging import Ints

TOLD_INTS = 3 + 2 * MAX_LOGPROBS  # of a row of `describe`, most


def describe_all(describe: Describe, logits: Tensor, tokens: Tensor, top: int, asked: Tensor | None = None) -> Tensor:
    """`describe`, a slab of rows after the other."""
    spans = slabs(*logits.shape)
    return torch.cat([describe(logits[s], tokens[s], top, None if asked is None else asked[s]) for s in spans])


def lines_of(described: Ints, tops: list[int]) -> list[bytes]:
    """The rows of `describe` on the host ``[n, 3 + 2 top]`` as base/scores; row i tells ``tops[i]`` likeliest."""
    if len(set(tops)) == 1:
        data = run_of(described, tops[0])
        size = len(data) // len(tops)
        return [data[at : at + size] for at in range(0, len(data), size)]
    found = [b""] * len(tops)
    for top in set(tops):
        places = [place for place, each in enumerate(tops) if each == top]
        for place, line in zip(places, lines_of(described[places], [top] * len(places))):
            found[place] = line
    return found


def run_of(described: Ints, top: int) -> bytes:
    """The same for rows that tell as many each, in one piece."""
    width = (described.shape[1] - 3) // 2
    top = min(top, width)
    lines = np.empty((described.shape[0], scores.HEAD + 2 * top), dtype=np.int32)
    lines[:, 0] = top
    lines[:, 1] = described[:, 1]
    lines[:, 2] = described[:, 0]
    lines[:, 3 : 3 + top] = described[:, 3 : 3 + top]
    lines[:, 3 + top] = described[:, 2]
    lines[:, 4 + top :] = described[:, 3 + width : 3 + width + top]
    return lines.tobytes()
