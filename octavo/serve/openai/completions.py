"""``/v1/completions``: text or token ids, one or many, continued."""

from collections.abc import Sequence
from typing import Any

from octavo.base.errors import UserError
from octavo.base.params import MAX_LOGPROBS
from octavo.serve.calls import Call, Reply
from octavo.serve.decode import Schema
from octavo.serve.generate import Piece
from octavo.serve.openai.answer import Answer, Choice, Options, bounded_call
from octavo.serve.openai.fields import SILENT
from octavo.serve.openai.logprobs import LegacyLogprobs, TokenNames, prompt_positions
from octavo.serve.openai.prepare import Prompt, Sequences, begin, check_choices, sampling, texts
from octavo.serve.openai.schema import MAX_PROMPTS, CompletionRequest

DEFAULT_MAX_TOKENS = 16

_SCHEMA = Schema(CompletionRequest, SILENT)


async def create(call: Call) -> Reply | None:
    """Continues each prompt `n` times; choice ``p * n + i`` is the i-th continuation of prompt p."""
    backend, model, body = await begin(call, _SCHEMA)
    options = Options.of(body)
    echo = bool(body.echo)
    only_echo = echo and body.max_tokens == 0
    if body.logprobs is not None and not 0 <= body.logprobs <= MAX_LOGPROBS:
        raise UserError(f"logprobs must be between 0 and {MAX_LOGPROBS}.", param="logprobs")
    if body.prompt_logprobs is not None and body.stream:
        raise UserError("prompt_logprobs cannot be streamed.", param="prompt_logprobs")
    params = sampling(backend, body, DEFAULT_MAX_TOKENS)
    if only_echo:
        params = params.replace(max_tokens=1, min_tokens=0)  # the engine's least; the token is not shown
    elif params.max_tokens == 0:
        raise UserError("max_tokens may be 0 only with echo: true.", param="max_tokens")
    if body.logprobs is not None:
        shown = max(params.prompt_logprobs or 0, body.logprobs) if echo else params.prompt_logprobs
        params = params.replace(logprobs=body.logprobs, prompt_logprobs=shown)
    prompts = split_prompts(body.prompt)
    check_choices(len(prompts), params.n)
    async with bounded_call(call):
        sequences = await call.service.off_loop(call.body_bytes, texts, call, backend, body, prompts, params)
    dialect = _Completions(backend.text.tokenizer, body, prompts, sequences, params.n, only_echo)
    return await Answer(call, backend, dialect, sequences, params.n, model, options).run()


def split_prompts(prompt: str | Sequence[Any]) -> list[Prompt]:
    """The prompts of a body: text, token ids, or a list of either. UserError for a mixture."""
    if isinstance(prompt, str):
        return [prompt]
    if not prompt:
        raise UserError("prompt must not be empty.", param="prompt")
    if _is_int(prompt[0]):
        return [_token_ids(prompt, "prompt")]
    if len(prompt) > MAX_PROMPTS:
        raise UserError(f"prompt may hold at most {MAX_PROMPTS} prompts.", param="prompt")
    if isinstance(prompt[0], str):
        for index, entry in enumerate(prompt):
            if not isinstance(entry, str):
                raise UserError(f"prompt[{index}] must be a string like those before it.", param=f"prompt[{index}]")
        return list(prompt)
    return [_token_ids(entry, f"prompt[{index}]") for index, entry in enumerate(prompt)]


def _token_ids(entry: Any, path: str) -> list[int]:
    if not isinstance(entry, list) or not all(map(_is_int, entry)):
        raise UserError(f"{path} must be a string or a list of token ids.", param=path)
    if not entry:
        raise UserError(f"{path} must not be empty.", param=path)
    return entry


def _is_int(value: Any) -> bool:
    return type(value) is int  # a bool is an int to isinstance


class _Completions:
    """The completions dialect."""

    prefix = "cmpl"
    whole_object = "text_completion"
    chunk_object = "text_completion"

    def __init__(
        self,
        tokenizer: Any,
        body: CompletionRequest,
        prompts: Sequence[Prompt],
        sequences: Sequences,
        n: int,
        only_echo: bool,
    ) -> None:
        self._names = TokenNames(tokenizer, bool(body.return_tokens_as_token_ids))
        self._tokenizer = tokenizer
        self._top = body.logprobs
        self._echo = bool(body.echo)
        self._prompts = prompts
        self._n = n
        self._positions = body.prompt_logprobs is not None
        self.hides_output = only_echo
        self._lines = [LegacyLogprobs(self._names, body.logprobs or 0) for _ in sequences]

    def choice(self, choice: Choice) -> dict[str, Any]:
        text = "".join(choice.text)
        rendered: dict[str, Any] = {
            "index": choice.index,
            "text": self._prompt_text(choice) + text if self._echo else text,
            "logprobs": self._whole_logprobs(choice),
            "finish_reason": choice.finish_reason,
            "stop_reason": choice.stop_reason,
        }
        if self._positions:
            rendered["prompt_logprobs"] = prompt_positions(self._names, choice.prompt_logprobs)
        return rendered

    def top_level(self, choices: Sequence[Choice]) -> dict[str, Any]:  # noqa: ARG002 - a dialect's signature
        return {}

    def opening(self, choice: Choice) -> dict[str, Any] | None:
        if not self._echo:
            return None
        return {
            "index": choice.index,
            "text": self._prompt_text(choice),
            "logprobs": self._prompt_part(choice),
            "finish_reason": None,
        }

    def text_key(self) -> tuple[bytes, bytes]:
        return b'"text":', b""

    def delta_logprobs(self, choice: Choice, piece: Piece) -> Any:
        if self._top is None or not piece.delta.logprobs:
            return None
        return self._lines[choice.index].render(piece.delta.tokens, piece.delta.logprobs)

    def _whole_logprobs(self, choice: Choice) -> Any:
        if self._top is None:
            return None
        prompt = self._prompt_part(choice) if self._echo else None
        output = self._lines[choice.index].render(choice.tokens, choice.logprobs)
        return output if prompt is None else {name: values + output[name] for name, values in prompt.items()}

    def _prompt_part(self, choice: Choice) -> Any:
        if self._top is None:
            return None
        return self._lines[choice.index].render(choice.request.tokens, choice.prompt_logprobs)

    def _prompt_text(self, choice: Choice) -> str:
        prompt = self._prompts[choice.index // self._n]
        if isinstance(prompt, str):
            return prompt
        text: str = self._tokenizer.decode(prompt, skip_special=False)
        return text
