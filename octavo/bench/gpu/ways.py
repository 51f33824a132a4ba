"""What other ways of choosing a token cost: their rates over that of the likeliest token."""

from typing import Any

from octavo.base.params import SamplingParams
from octavo.bench.data import even
from octavo.bench.gpu.setting import Sizes
from octavo.bench.offline import timed

_CHAT = {"temperature": 0.7, "top_k": 20, "top_p": 0.8}  # what Qwen's models advise
WAYS: dict[str, tuple[str, dict[str, Any]]] = {
    "chat": ("temperature 0.7, top_k 20, top_p 0.8", _CHAT),
    "penalty": ("the same and presence_penalty 1.5", {**_CHAT, "presence_penalty": 1.5}),
    "logprobs": ("greedy, log-probabilities of 5", {"temperature": 0.0, "logprobs": 5}),
}
"""What each is called, and its fields."""


def rate(llm: Any, size: int, sizes: Sizes, seed: int, way: dict[str, Any]) -> float:
    """Tokens a second of `size` streams at once that are sampled in this way."""
    load = even(size, sizes.decode_in, sizes.decode_out, seed=seed)
    return load.total_out / timed(llm, load, SamplingParams(**way))
