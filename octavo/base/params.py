"""SamplingParams: what a caller asks of the sampler, in the names that vLLM and OpenAI use."""

import re
from typing import Any, Literal

import msgspec
from msgspec import Struct

from octavo.base.errors import UserError

MAX_N = 128
MAX_LOGPROBS = 20
MAX_LOGPROB_TOKEN_IDS = 128
MAX_STOPS = 256
MAX_STOP_CHARS = 16_384
MAX_STOP_TOKEN_IDS = 256
MAX_LOGIT_BIAS = 1024
MAX_BAD_WORDS = 256
MAX_BAD_WORD_CHARS = 256
MAX_ALLOWED_TOKEN_IDS = 262_144
MIN_REPETITION_PENALTY = 1e-6  # logits are divided by it, in 32 bits
MAX_TOKENS = 1 << 24
MAX_SEED = (1 << 63) - 1


class StructuredOutputsParams(Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """What the output must look like: exactly one of the first six. Names are vLLM's."""

    json: str | dict[str, Any] | bool | None = None  # a JSON schema
    regex: str | None = None  # that the whole output must match
    choice: list[str] | None = None
    grammar: str | None = None  # Lark, or EBNF in GBNF's form
    json_object: bool | None = None
    structural_tag: str | dict[str, Any] | None = None
    backend: str = "auto"  # a grammar engine by name; auto: the first that can enforce it exactly
    disable_any_whitespace: bool = False
    disable_additional_properties: bool = False
    whitespace_pattern: str | None = None
    finish_within_budget: bool | None = None  # end whole even if by length; None: for JSON

    @property
    def given(self) -> list[str]:
        """Names of the constraints that are set."""
        found = {name: getattr(self, name) for name in CONSTRAINTS}
        if self.json_object is False:  # off; a schema that is false is one that nothing fits
            del found["json_object"]
        return [name for name, value in found.items() if value is not None]


CONSTRAINTS = ("json", "regex", "choice", "grammar", "json_object", "structural_tag")


class SamplingParams(Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """How to pick the next tokens of one request. Validated by `checked`."""

    n: int = 1
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0  # 0 and -1: off
    min_p: float = 0.0
    typical_p: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: dict[int, float] | None = None
    bad_words: list[str] | None = None
    allowed_token_ids: list[int] | None = None
    stop: list[str] | str | None = None
    stop_token_ids: list[int] | None = None
    min_tokens: int = 0
    max_tokens: int | None = 16  # None: the rest of the context
    ignore_eos: bool = False
    seed: int | None = None  # None and -1: another one each time
    logprobs: int | None = None  # how many of the likeliest tokens to report beside the chosen one
    prompt_logprobs: int | None = None
    logprob_token_ids: list[int] | None = None  # report these tokens' instead of the likeliest; needs logprobs
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True
    truncate_prompt_tokens: int | None = None
    truncation_side: Literal["left", "right"] = "left"  # which end of a long prompt goes
    detokenize: bool = True
    structured_outputs: StructuredOutputsParams | None = None

    def typed(self) -> "SamplingParams":
        """The same with every value of its field's type: a dict for `structured_outputs` becomes one. What comes over
        HTTP has its types already. Raises UserError naming the field."""
        fields = zip(self.__struct_fields__, msgspec.structs.astuple(self), _DEFAULTS)
        given = {name: value for name, value, default in fields if value is not default}
        given = {
            name: value.tolist() if hasattr(value, "tolist") else value for name, value in given.items()
        }  # numpy's
        try:
            return msgspec.convert(given, SamplingParams)
        except msgspec.ValidationError as error:
            reason, _, path = str(error).partition(" - at ")
            found = _FIELD.search(path)
            param = found[1] if found else "sampling_params"
            raise UserError(f"{param}: {reason}", param=param) from None

    def checked(self) -> "SamplingParams":
        """Self, or UserError naming the field. Bounds that need the model (vocabulary, context) come later."""
        for name, low, high in _RANGES:
            value = getattr(self, name)
            if value is not None and not low <= value <= high:
                raise UserError(f"{name} must be between {low} and {high}, got {_short(value)}", param=name)
        if self.truncation_side not in ("left", "right"):
            raise UserError("truncation_side must be left or right", param="truncation_side")
        if self.top_p <= 0.0:
            raise UserError("top_p must be above 0", param="top_p")
        if self.typical_p <= 0.0:
            raise UserError("typical_p must be above 0", param="typical_p")
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise UserError(f"min_tokens must be at most max_tokens ({self.max_tokens})", param="min_tokens")
        for name, limit in _LISTS:
            value = getattr(self, name)
            if value is not None and not isinstance(value, str) and len(value) > limit:
                raise UserError(f"{name} may hold at most {limit} entries, got {len(value)}", param=name)
        _check_strings("stop", self.stops, MAX_STOP_CHARS)
        _check_strings("bad_words", self.bad_words or [], MAX_BAD_WORD_CHARS)
        for token, bias in (self.logit_bias or {}).items():
            if not -100.0 <= bias <= 100.0:
                raise UserError("logit_bias values must be between -100 and 100", param=f"logit_bias.{token}")
        if self.allowed_token_ids is not None and not self.allowed_token_ids:
            raise UserError("allowed_token_ids must not be empty", param="allowed_token_ids")
        if self.logprob_token_ids and self.logprobs is None:
            raise UserError("logprob_token_ids needs logprobs", param="logprob_token_ids")
        return self

    @property
    def stops(self) -> list[str]:
        return [self.stop] if isinstance(self.stop, str) else list(self.stop or [])

    def replace(self, **changes: Any) -> "SamplingParams":
        return msgspec.structs.replace(self, **changes)


_DEFAULTS = msgspec.structs.astuple(SamplingParams())
_FIELD = re.compile(r"\$\.([\w.\[\]]+)")

# A comparison with NaN is false, so the range test above refuses it, and infinities too.
_RANGES: tuple[tuple[str, float, float], ...] = (
    ("n", 1, MAX_N),
    ("temperature", 0.0, 2.0),
    ("top_p", 0.0, 1.0),
    ("top_k", -1, 1 << 31),
    ("min_p", 0.0, 1.0),
    ("typical_p", 0.0, 1.0),
    ("presence_penalty", -2.0, 2.0),
    ("frequency_penalty", -2.0, 2.0),
    ("repetition_penalty", MIN_REPETITION_PENALTY, 10.0),
    ("min_tokens", 0, MAX_TOKENS),
    ("max_tokens", 0, MAX_TOKENS),
    ("seed", -MAX_SEED, MAX_SEED),
    ("logprobs", 0, MAX_LOGPROBS),
    ("prompt_logprobs", 0, MAX_LOGPROBS),
    ("truncate_prompt_tokens", -1, MAX_TOKENS),
)

_LISTS: tuple[tuple[str, int], ...] = (
    ("stop", MAX_STOPS),
    ("stop_token_ids", MAX_STOP_TOKEN_IDS),
    ("logit_bias", MAX_LOGIT_BIAS),
    ("bad_words", MAX_BAD_WORDS),
    ("allowed_token_ids", MAX_ALLOWED_TOKEN_IDS),
    ("logprob_token_ids", MAX_LOGPROB_TOKEN_IDS),
)


def _check_strings(name: str, values: list[str], limit: int) -> None:
    for index, value in enumerate(values):
        if not value:
            raise UserError(f"{name} must not hold empty strings", param=f"{name}[{index}]")
        if len(value) > limit:
            raise UserError(f"{name} entries may have at most {limit} characters", param=f"{name}[{index}]")


def _short(value: object) -> str:
    return repr(value)[:40] if not isinstance(value, int) or abs(value) < 10**40 else "a number of more than 40 digits"
