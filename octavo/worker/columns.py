"""The sampling numbers of a row, side by side in one int32 line, so that one gather fetches them all."""

import struct
from array import array
from operator import attrgetter

import numpy as np
import torch
from torch import Tensor

from octavo.base.wire import Sampling
from octavo.worker.staging import Ints

WIDTH = 12  # int32 places; even, so that the seed's two can be read as one int64
GREEDY_BELOW = 1e-5  # a temperature under this is greedy, as in vLLM

# Places. 0 and 1 hold the seed's 64 bits.
_FLOATS = (
    "temperature",
    "top_p",
    "min_p",
    "typical_p",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
)
_FIRST_FLOAT = 2
_TOP_K = 9
NUM_PROMPT = 10
_TOLD = 11


_NEUTRAL = (0.0, 1.0, 0.0, 1.0)  # the first four floats of a greedy row
_numbers_of = attrgetter(*_FLOATS)
_SEED = struct.Struct("=Q")
_LAST = struct.Struct("=3i")  # top_k, num_prompt, told


def pack(sampling: Sampling, num_prompt: int) -> Ints:
    """One line ``[WIDTH]``. A greedy row's filters are set to neutral: they cannot change its argmax."""
    floats = _numbers_of(sampling)
    top_k = min(max(sampling.top_k, 0), (1 << 31) - 1)
    if is_greedy(sampling):
        floats, top_k = _NEUTRAL + floats[4:], 0
    seed, last = _SEED.pack(sampling.seed & (1 << 64) - 1), _LAST.pack(top_k, num_prompt, sampling.logprobs)
    return np.frombuffer(seed + array("f", floats).tobytes() + last, dtype=np.int32)


def is_greedy(sampling: Sampling) -> bool:
    return sampling.temperature < GREEDY_BELOW


def penalizes(sampling: Sampling) -> bool:
    """Whether what was said is held against it."""
    return sampling.repetition_penalty != 1.0 or sampling.frequency_penalty != 0.0 or sampling.presence_penalty != 0.0


def is_plain(sampling: Sampling) -> bool:
    """Greedy, and nothing else is asked: the likeliest token is the answer."""
    return is_greedy(sampling) and not penalizes(sampling) and not _lists(sampling) and sampling.logprobs < 0


def is_bare(sampling: Sampling) -> bool:
    """Plain but for its temperature, top_k, top_p, min_p, penalties and the log-probabilities of the likeliest."""
    named = sampling.logprobs >= 0 and sampling.logprob_token_ids
    return (is_greedy(sampling) or sampling.typical_p == 1.0) and not _lists(sampling) and not named


def _lists(sampling: Sampling) -> bool:
    """Whether it rules over some tokens by name."""
    named = sampling.logit_bias or sampling.bad_words or sampling.allowed_token_ids or sampling.min_tokens
    return bool(named)


class Columns:
    """Views of gathered lines ``[S, WIDTH]`` int32 by name; each ``[S]``."""

    def __init__(self, lines: Tensor) -> None:
        self._lines = lines

    def __getattr__(self, name: str) -> Tensor:
        """A float column, fp32."""
        try:
            place = _FIRST_FLOAT + _FLOATS.index(name)
        except ValueError:
            raise AttributeError(name) from None
        return self._lines[:, place : place + 1].view(torch.float32)[:, 0]

    @property
    def seed(self) -> Tensor:
        """int64; the unsigned seed's bits."""
        return self._lines[:, :2].view(torch.int64)[:, 0]

    @property
    def top_k(self) -> Tensor:
        """int32; 0: off."""
        return self._lines[:, _TOP_K]

    @property
    def num_prompt(self) -> Tensor:
        """int32."""
        return self._lines[:, NUM_PROMPT]

    @property
    def told(self) -> Tensor:
        """int32; how many likeliest tokens are told of beside the chosen one, -1: nothing."""
        return self._lines[:, _TOLD]

    def select(self, index: Tensor | None) -> "Columns":
        """The lines at `index`; None: all."""
        return self if index is None else Columns(self._lines.index_select(0, index))

    def part(self, span: slice) -> "Columns":
        """Those lines, which stay where they are."""
        return Columns(self._lines[span])
