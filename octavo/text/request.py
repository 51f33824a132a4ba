"""A prompt and SamplingParams in, EngineRequests and their Collectors out. The text side's front door.

Everything here is a plain function of its arguments and thread safe: call it off the event loop.
"""

from collections.abc import Callable, Mapping, Sequence
from itertools import count
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from octavo.base.errors import UserError
from octavo.base.params import SamplingParams
from octavo.base.wire import EngineRequest, Sampling, Vocabulary
from octavo.grammar.forms import check_shape
from octavo.grammar.spec import RIDER, GrammarSpec, encode_spec
from octavo.text.chat import NO_TEMPLATE, ChatTemplate
from octavo.text.collect import Collector
from octavo.text.defaults import Defaults
from octavo.text.parse.speech import NO_DIALECT, Speech, Voice, Wish
from octavo.text.sampling import check_ids, mix, resolve_sampling, sibling_seed
from octavo.text.special import Bounds, Crowded, Rendered
from octavo.text.structured import given_spec, vocabulary_of
from octavo.text.tokenizer import Tokenizer

MAX_ID_CHARS = 256
MAX_SALT_CHARS = 256
_TAIL_CHARS = 256  # of a prompt: enough to see whether it ends inside thoughts
_PROBE_CHARS = 1 << 16  # a longer text is counted piece by piece first, so that a hopeless one costs little


class Limits(Struct, frozen=True):
    """What the engine can take: tokens of prompt and output together, and the width of the model's vocabulary."""

    max_model_len: int
    vocab_size: int
    max_wait_s: float = 0.0  # how long a request may wait for its first step; 0: as long as it takes


class Prepared(Struct, frozen=True):
    """A request ready for the engine: n siblings, and a collector for each, in the same order."""

    requests: list[EngineRequest]
    collectors: list[Collector]
    prompt_tokens: list[int]


class TextProcessor:
    """Turns prompts into engine requests.

    `seed` starts the seeds of requests that give none. `speech` is how the model marks thoughts and calls.
    `vocabulary` tells what each token stands for, for features of the engine that must know; None: it cannot be told.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        chat: ChatTemplate | None,
        limits: Limits,
        defaults: Defaults = Defaults(),  # noqa: B008
        *,
        seed: int = 0,
        speech: Speech | None = None,
        vocabulary: Callable[[], Vocabulary] | None = None,
    ) -> None:
        self.speech = speech
        self.tokenizer = tokenizer
        self.template = chat
        self.limits = limits
        self.defaults = defaults
        self.vocabulary = vocabulary or vocabulary_of(tokenizer)
        self._vocab_size = min(tokenizer.vocab_size, limits.vocab_size)
        self._seed = seed
        self._counter = count(1)

    def completion(
        self,
        prompt: str | Sequence[int],
        params: SamplingParams,
        *,
        request_id: str,
        priority: int = 0,
        cache_salt: str = "",
        echo: bool = False,
        add_special: bool = True,
        param: str = "prompt",
        grammar: GrammarSpec | None = None,
    ) -> Prepared:
        """A prompt as text or as token ids. `param` names the prompt's field in errors. `grammar` goes before the
        params' structured_outputs. Raises UserError."""
        params = params.checked()
        if isinstance(prompt, str):
            tokens = self.tokenize(prompt, add_special=add_special, bounded=params.truncate_prompt_tokens is None)
            text = prompt if params.truncate_prompt_tokens is None else None
        else:
            tokens, text = self._given_tokens(prompt, params, param), None
        tokens = self._truncated(tokens, params)
        grammar = given_spec(params) if grammar is None else grammar
        return self._prepare(tokens, text, params, request_id, priority, cache_salt, echo, param, grammar)

    def chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        params: SamplingParams,
        *,
        request_id: str,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        template_args: Mapping[str, Any] | None = None,
        priority: int = 0,
        cache_salt: str = "",
        echo: bool = False,
        grammar: GrammarSpec | None = None,
        wish: Wish | None = None,
        add_special: bool = False,
    ) -> Prepared:
        """A chat, rendered by the model's template. `grammar` goes before the params' structured_outputs.
        `add_special`: with the tokens that the tokenizer puts round a text of its own accord, which templates write.

        With `wish` its answer is read for thoughts and calls, and `grammar` waits for the end of the thoughts.
        Raises UserError.
        """
        params = params.checked()
        rendered = self.render(
            messages,
            tools=tools,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=continue_final_message,
            template_args=template_args,
            bounded=params.truncate_prompt_tokens is None,
        )
        tokens = self.tokenize(
            rendered, add_special=add_special, bounded=params.truncate_prompt_tokens is None, param="messages"
        )
        tokens = self._truncated(tokens, params)
        text = str(rendered) if echo and params.truncate_prompt_tokens is None else None
        if grammar is None:
            grammar = given_spec(params)
        voice = None
        if wish is not None and params.detokenize:
            voice = self._voice(rendered.text[-_TAIL_CHARS:], wish, grammar)
            grammar = grammar if voice is None else voice.spec
        return self._prepare(tokens, text, params, request_id, priority, cache_salt, echo, "messages", grammar, voice)

    def _voice(self, tail: str, wish: Wish, grammar: GrammarSpec | None) -> Voice | None:
        if self.speech is not None:
            return self.speech.voice(tail, wish, grammar)
        if wish.choice is not None and wish.choice.mode == "required":
            raise UserError(NO_DIALECT, param="tool_choice", code="unsupported_value")
        return None

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        template_args: Mapping[str, Any] | None = None,
        bounded: bool = True,
    ) -> Rendered:
        """The prompt that a chat becomes; `bounded` refuses one that cannot fit early.

        Raises UserError, also when the model has no template.
        """
        if self.template is None:
            raise UserError(NO_TEMPLATE, param="messages", code="no_chat_template")
        limit = self.limits.max_model_len
        try:
            return self.template.render(
                messages,
                tools,
                add_generation_prompt,
                continue_final_message=continue_final_message,
                bounds=Bounds(limit * self.tokenizer.longest_token, limit) if bounded else None,
                **{name: value for name, value in (template_args or {}).items() if name not in _RENDER_ARGS},
            )
        except Crowded as crowded:
            raise _too_long(limit, f"at least {crowded.seen}", "messages") from None

    def tokenize(
        self, text: str | Rendered, *, add_special: bool = True, bounded: bool = True, param: str = "prompt"
    ) -> list[int]:
        """Token ids of a prompt or a rendered chat; `bounded` refuses a text that cannot fit the context early."""
        self._check_length(text.text if isinstance(text, Rendered) else text, bounded, param)
        if isinstance(text, Rendered):
            tokens = self.tokenizer.encode_chat(text)
            if add_special:
                tokens = [*self.tokenizer.encode("", add_special=True), *tokens]
        else:
            tokens = self.tokenizer.encode(text, add_special=add_special)
        if tokens and max(tokens) >= self._vocab_size:
            raise UserError(f"the text holds token {max(tokens)}, which the model does not have", param=param)
        if not tokens and self.tokenizer.bos_id is not None:
            return [self.tokenizer.bos_id]
        return tokens

    def _check_length(self, text: str, bounded: bool, param: str) -> None:
        """Refuse text that is too long, at a cost that does not grow with how much too long it is."""
        limit = self.limits.max_model_len
        if len(text) > limit * self.tokenizer.longest_token:
            raise _too_long(limit, f"at least {len(text) // self.tokenizer.longest_token}", param)
        if not bounded or len(text) <= max(_PROBE_CHARS, limit // 4):
            return
        tokens = 0
        for number, start in enumerate(range(0, len(text), _PROBE_CHARS), 1):
            piece = text[start : start + _PROBE_CHARS]
            tokens += len(self.tokenizer.encode(piece, add_special=False))
            # A cut adds a few tokens at most; allow each a good many.
            if tokens - 64 * number > limit:
                raise _too_long(limit, f"more than {tokens - 64 * number}", param)

    def _given_tokens(self, prompt: Sequence[int], params: SamplingParams, param: str) -> list[int]:
        if not prompt:
            raise UserError("the prompt must not be empty", param=param)
        if len(prompt) > self.limits.max_model_len and params.truncate_prompt_tokens is None:
            raise _too_long(self.limits.max_model_len, str(len(prompt)), param)
        check_ids(prompt, self._vocab_size, param)
        return list(prompt)

    def _truncated(self, tokens: list[int], params: SamplingParams) -> list[int]:
        """The last `truncate_prompt_tokens` tokens, a leading bos kept, or the first; -1: as many as leave room for the
        output."""
        keep = params.truncate_prompt_tokens
        if keep is None:
            return tokens
        if keep == 0 or keep > self.limits.max_model_len:
            raise UserError(
                f"truncate_prompt_tokens must be -1 or between 1 and the context length {self.limits.max_model_len}",
                param="truncate_prompt_tokens",
            )
        if keep < 0:
            keep = max(1, self.limits.max_model_len - max(1, params.max_tokens or 1))
        if len(tokens) <= keep:
            return tokens
        if params.truncation_side == "right":
            return tokens[:keep]
        if keep > 1 and tokens[0] == self.tokenizer.bos_id:
            return [tokens[0], *tokens[1 - keep :]]
        return tokens[-keep:]

    def _prepare(
        self,
        tokens: list[int],
        text: str | None,
        params: SamplingParams,
        request_id: str,
        priority: int,
        cache_salt: str,
        echo: bool,
        param: str,
        grammar: GrammarSpec | None,
        voice: Voice | None = None,
    ) -> Prepared:
        _check_envelope(request_id, priority, cache_salt)
        if not tokens:
            raise UserError("the prompt must not be empty", param=param)
        if params.stops and not params.detokenize:
            raise UserError("stop strings need detokenize", param="stop")
        prompt_only = params.max_tokens == 0
        if prompt_only and not echo and params.prompt_logprobs is None:
            raise UserError("max_tokens must be at least 1, but for echo or prompt_logprobs", param="max_tokens")
        room = self._room(len(tokens), params, param)
        # The engine must yield a token to have seen the whole prompt; nobody sees that one, so nothing can end on it.
        nothing = {"max_tokens": 1, "min_tokens": 0, "ignore_eos": True, "stop_token_ids": None}
        wanted = params.replace(**nothing) if prompt_only else params
        if params.max_tokens is None and self.defaults.max_tokens is not None:
            room = min(room, self.defaults.max_tokens)
        base = params.seed if params.seed is not None and params.seed != -1 else mix(self._seed, next(self._counter))
        first = resolve_sampling(wanted, self.tokenizer, vocab_size=self._vocab_size, room=room, seed=0)
        riders: dict[str, bytes] = {}
        if grammar is not None and not prompt_only:
            first, riders = self._constrained(first, grammar)
        requests, collectors = [], []
        for index in range(params.n):
            name = request_id if params.n == 1 else f"{request_id}-{index}"
            sampling = replace(first, seed=sibling_seed(base, index))
            requests.append(EngineRequest(name, tokens, sampling, priority, cache_salt, self.limits.max_wait_s, riders))
            collectors.append(
                Collector(
                    self.tokenizer,
                    params,
                    tokens,
                    index=index,
                    prompt_text=text,
                    echo=echo,
                    hide_output=prompt_only,
                    speaker=voice.speaker() if voice is not None else None,
                    shown=voice.shown if voice is not None else frozenset(),
                )
            )
        return Prepared(requests, collectors, tokens)

    def _constrained(self, sampling: Sampling, grammar: GrammarSpec) -> tuple[Sampling, dict[str, bytes]]:
        """A constraint says itself when the output may end: it takes over `min_tokens`, and ends stay ends. Of the
        caller's own stop tokens it knows nothing."""
        ends = tuple(token for token in self.tokenizer.eos_ids if token < self._vocab_size)
        check_shape(grammar)
        if self.vocabulary is not None:
            self.vocabulary()  # the engine will ask; here it holds nobody up
        spec = replace(grammar, min_tokens=max(grammar.min_tokens, sampling.min_tokens))
        own = tuple(token for token in sampling.stop_token_ids if token not in ends)
        held = sampling.min_tokens if own else 0
        ruled = replace(sampling, min_tokens=held, stop_token_ids=own, eos_token_ids=ends, eos_ruled=True)
        return ruled, {RIDER: encode_spec(spec)}

    def _room(self, prompt: int, params: SamplingParams, param: str) -> int:
        """Tokens that fit after the prompt. Raises UserError if none does, or fewer than the caller wants."""
        limit = self.limits.max_model_len
        room = limit - prompt
        if room < 1:
            raise _too_long(limit, str(prompt), param)
        wanted = params.max_tokens
        if wanted is not None and wanted > room:
            raise UserError(
                f"This model's maximum context length is {limit} tokens. However, you requested {prompt + wanted} "
                f"tokens ({prompt} in the {param}, {wanted} in the completion). Please reduce the length of "
                f"the {param} or of the completion.",
                param="max_tokens",
                code="context_length_exceeded",
            )
        return room


_RENDER_ARGS = frozenset({"messages", "tools", "add_generation_prompt", "continue_final_message", "bounds", "self"})


def _check_envelope(request_id: str, priority: int, cache_salt: str) -> None:
    if not 0 < len(request_id) <= MAX_ID_CHARS:
        raise UserError(f"a request id must have 1 to {MAX_ID_CHARS} characters", param="request_id")
    if isinstance(priority, bool) or not -(1 << 31) <= priority < 1 << 31:
        raise UserError("priority must fit in 32 bits", param="priority")
    if len(cache_salt) > MAX_SALT_CHARS:
        raise UserError(f"cache_salt may have at most {MAX_SALT_CHARS} characters", param="cache_salt")


def _too_long(limit: int, length: str, param: str) -> UserError:
    return UserError(
        f"This model's maximum context length is {limit} tokens. However, your request has {length} input tokens, and "
        f"at least one must be left for the output. Please reduce the length of the {param}.",
        param=param,
        code="context_length_exceeded",
    )
