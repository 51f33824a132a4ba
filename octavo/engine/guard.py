"""The last check before a request can reach the device, whatever route it came by.

The text side has told the caller all this with the field's name; here only the numbers that index device memory
are looked at again, so that no path can forget one.
"""

import math
from array import array
from collections.abc import Callable
from itertools import chain

import numpy as np

from octavo.base.errors import UserError
from octavo.base.params import MAX_LOGPROBS
from octavo.base.wire import EngineRequest, Sampling

MAX_ID_CHARS = 256

Guard = Callable[[EngineRequest], None]
"""Raises UserError for a request that must not come in."""


def let_in(request: EngineRequest) -> None:
    """The guard that asks nothing."""
    del request


def make_guard(vocab_size: int) -> Guard:
    """A guard for one model. What does not index the device, such as the prompt's length, is the scheduler's."""

    def guard(request: EngineRequest) -> None:
        sampling = request.sampling
        if not 0 < len(request.id) <= MAX_ID_CHARS:
            raise UserError("the request's id is empty or too long", param="request_id")
        told = request.progress.tokens if request.progress else []
        if not _inside(request.tokens, vocab_size) or not _inside(told, vocab_size):
            raise UserError(f"token ids must be between 0 and {vocab_size - 1}", param="prompt")
        if not _inside(_token_ids(sampling), vocab_size):
            raise UserError(f"token ids of the sampling rules must be between 0 and {vocab_size - 1}")
        if not _bounded(sampling):
            raise UserError("a number of the sampling rules is out of range")

    return guard


def _inside(tokens: list[int], vocab_size: int) -> bool:
    if not tokens:
        return True
    try:
        line = array("I")
        line.fromlist(tokens)
        return int(np.frombuffer(line, dtype=np.uintc).max()) < vocab_size
    except OverflowError:  # negative, or more than 32 bits
        return False


def _token_ids(sampling: Sampling) -> list[int]:
    return [
        *(token for token, _ in sampling.logit_bias),
        *chain.from_iterable(sampling.bad_words),
        *sampling.allowed_token_ids,
        *sampling.eos_token_ids,
        *sampling.stop_token_ids,
        *sampling.logprob_token_ids,
    ]


def _bounded(sampling: Sampling) -> bool:
    numbers = (
        sampling.temperature,
        sampling.top_p,
        sampling.min_p,
        sampling.typical_p,
        sampling.presence_penalty,
        sampling.frequency_penalty,
        sampling.repetition_penalty,
        *(bias for _, bias in sampling.logit_bias),
    )
    return (
        all(map(math.isfinite, numbers))
        and sampling.max_tokens >= 1
        and sampling.min_tokens >= 0
        and 0 <= sampling.seed < 1 << 64
        and sampling.temperature >= 0
        and sampling.repetition_penalty > 0
        and -1 <= sampling.logprobs <= MAX_LOGPROBS
        and -1 <= sampling.prompt_logprobs <= MAX_LOGPROBS
    )
