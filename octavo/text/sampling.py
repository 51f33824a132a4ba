"""From SamplingParams, in a caller's words, to Sampling, in the engine's: every id and length within the model, and a
seed for each sibling of a request."""

from collections.abc import Iterable

from octavo.base.errors import UserError
from octavo.base.params import SamplingParams
from octavo.base.wire import Sampling
from octavo.text.ids import are_below
from octavo.text.tokenizer import Tokenizer

_MASK = (1 << 64) - 1
_GREEDY_BELOW = 1e-5  # a temperature under which division would overflow


def resolve_sampling(
    params: SamplingParams, tokenizer: Tokenizer, *, vocab_size: int, room: int, seed: int
) -> Sampling:
    """The sampling rules of one sequence.

    `room` is the number of tokens that fit after the prompt, at least one; `vocab_size` bounds every id. `params`
    has passed `checked()`. Raises UserError.
    """
    max_tokens = room if params.max_tokens is None else params.max_tokens
    if params.min_tokens > max_tokens:
        raise UserError(f"min_tokens must be at most max_tokens ({max_tokens})", param="min_tokens")
    check_ids(params.stop_token_ids or (), vocab_size, "stop_token_ids")
    check_ids(params.allowed_token_ids or (), vocab_size, "allowed_token_ids")
    check_ids(params.logit_bias or (), vocab_size, "logit_bias")
    check_ids(params.logprob_token_ids or (), vocab_size, "logprob_token_ids")
    greedy = params.temperature < _GREEDY_BELOW
    return Sampling(
        seed=seed,
        max_tokens=max_tokens,
        min_tokens=params.min_tokens,
        temperature=0.0 if greedy else params.temperature,
        top_p=1.0 if greedy else params.top_p,
        top_k=0 if greedy or params.top_k <= 0 or params.top_k >= vocab_size else params.top_k,
        min_p=0.0 if greedy else params.min_p,
        typical_p=1.0 if greedy else params.typical_p,
        presence_penalty=params.presence_penalty,
        frequency_penalty=params.frequency_penalty,
        repetition_penalty=params.repetition_penalty,
        logit_bias=tuple(sorted((params.logit_bias or {}).items())),
        bad_words=_bad_words(params.bad_words or (), tokenizer, vocab_size),
        allowed_token_ids=tuple(sorted(set(params.allowed_token_ids or ()))),
        eos_token_ids=() if params.ignore_eos else tuple(token for token in tokenizer.eos_ids if token < vocab_size),
        stop_token_ids=tuple(sorted(set(params.stop_token_ids or ()))),
        logprobs=-1 if params.logprobs is None else min(params.logprobs, vocab_size),
        prompt_logprobs=-1 if params.prompt_logprobs is None else min(params.prompt_logprobs, vocab_size),
        logprob_token_ids=tuple(dict.fromkeys(params.logprob_token_ids or ())),
    )


def check_ids(ids: Iterable[int], vocab_size: int, param: str) -> None:
    """Refuse ids that the vocabulary does not have; `param` names the field."""
    if are_below(ids, vocab_size):
        return
    for token in ids:
        if isinstance(token, bool) or not isinstance(token, int):
            raise UserError(f"{param} must hold whole numbers", param=param)
        if not 0 <= token < vocab_size:
            shown = str(token)[:24]
            raise UserError(f"token id {shown} in {param} is outside the vocabulary of {vocab_size}", param=param)


def sibling_seed(seed: int, index: int) -> int:
    """An unsigned 64-bit seed for each sibling. The first keeps the caller's own, modulo 2**64."""
    return seed & _MASK if index == 0 else mix(seed, index)


def mix(seed: int, index: int) -> int:
    """The `index`-th output of SplitMix64 from `seed` (Steele, Lea and Flood 2014): far apart for near arguments."""
    value = (seed + index * 0x9E3779B97F4A7C15) & _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)


def _bad_words(words: Iterable[str], tokenizer: Tokenizer, vocab_size: int) -> tuple[tuple[int, ...], ...]:
    """Each word as it is and after a space: the two ways in which it can begin."""
    found: dict[tuple[int, ...], None] = {}
    for word in words:
        bare = word.lstrip()
        for text in (bare, f" {bare}") if bare else (word,):
            tokens = tuple(tokenizer.encode(text, add_special=False))
            if tokens and max(tokens) < vocab_size:
                found[tokens] = None
    return tuple(found)
