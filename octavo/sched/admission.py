"""What can never run is refused when it comes."""

from octavo.base.errors import UserError
from octavo.base.wire import EngineRequest
from octavo.sched.limits import Limits

MAX_SALT_CHARS = 1024  # it is hashed on the engine's thread


def check(wire: EngineRequest, limits: Limits, longest_alone: int) -> None:
    """Raises UserError. `longest_alone`: tokens that one request can compute when it has the whole cache."""
    num_prompt = len(wire.tokens)
    if num_prompt == 0:
        raise UserError("the prompt is empty", param="prompt")
    if num_prompt >= limits.max_model_len:
        raise UserError(
            f"the prompt has {num_prompt} tokens; with at least one token of output the context of "
            f"{limits.max_model_len} is too short for it",
            param="prompt",
            code="context_length_exceeded",
        )
    known_at_end = min(num_prompt + wire.sampling.max_tokens, limits.max_model_len)
    if wire.progress is not None and num_prompt + len(wire.progress.tokens) >= known_at_end:
        raise UserError("the request has all the tokens that it may have", param="max_tokens")
    if len(wire.cache_salt) > MAX_SALT_CHARS:
        raise UserError(f"cache_salt may have at most {MAX_SALT_CHARS} characters", param="cache_salt")
    longest = known_at_end - 1  # the last token is never computed
    if longest > longest_alone:
        param = "prompt" if num_prompt > longest_alone else "max_tokens"
        raise UserError(
            f"prompt and max_tokens need room for {longest} tokens; the KV cache holds {longest_alone}",
            param=param,
            code="kv_cache_exceeded",
        )
