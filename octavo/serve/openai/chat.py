"""``/v1/chat/completions``: messages through the model's chat template."""

from collections.abc import Sequence
from typing import Any

from octavo.base.errors import UserError
from octavo.base.params import MAX_LOGPROBS, MAX_TOKENS
from octavo.serve.calls import Backend, Call, Reply
from octavo.serve.decode import Schema
from octavo.serve.generate import Piece
from octavo.serve.openai.answer import Answer, Choice, Options, bounded_call
from octavo.serve.openai.fields import SILENT
from octavo.serve.openai.logprobs import TokenNames, chat_content, prompt_positions
from octavo.serve.openai.prepare import begin, check_choices, conversation, sampling
from octavo.serve.openai.schema import ChatRequest

_SCHEMA = Schema(ChatRequest, SILENT)


async def create(call: Call) -> Reply | None:
    """Answers the conversation `n` times."""
    backend, model, body = await begin(call, _SCHEMA)
    options = Options.of(body)
    _check(body)
    params = sampling(backend, body, None)
    if body.max_completion_tokens is not None:
        params = params.replace(max_tokens=body.max_completion_tokens)
    if body.logprobs:
        params = params.replace(logprobs=body.top_logprobs or 0)
    check_choices(1, params.n)
    async with bounded_call(call):
        sequences = await call.service.off_loop(call.body_bytes, conversation, call, backend, body, params)
    return await Answer(call, backend, _Chat(backend, body), sequences, params.n, model, options).run()


def _check(body: ChatRequest) -> None:
    """What the fields must be to each other."""
    choice = body.tool_choice
    if choice not in (None, "none", "auto"):
        raise UserError(
            "tool_choice may be none or auto on this server.", param="tool_choice", code="unsupported_value"
        )
    top = body.top_logprobs
    if top is not None:
        if not 0 <= top <= MAX_LOGPROBS:
            raise UserError(f"top_logprobs must be between 0 and {MAX_LOGPROBS}.", param="top_logprobs")
        if top and not body.logprobs:
            raise UserError("top_logprobs needs logprobs: true.", param="top_logprobs")
    for name in ("max_tokens", "max_completion_tokens"):
        value = getattr(body, name)
        if value is not None and not 1 <= value <= MAX_TOKENS:
            raise UserError(f"{name} must be between 1 and {MAX_TOKENS}.", param=name)
    if body.prompt_logprobs is not None and body.stream:
        raise UserError("prompt_logprobs cannot be streamed.", param="prompt_logprobs")


class _Chat:
    """The chat dialect."""

    prefix = "chatcmpl"
    whole_object = "chat.completion"
    chunk_object = "chat.completion.chunk"
    hides_output = False

    def __init__(self, backend: Backend, body: ChatRequest) -> None:
        self._names = TokenNames(backend.text.tokenizer, bool(body.return_tokens_as_token_ids))
        self._logprobs = bool(body.logprobs)
        self._top = body.top_logprobs or 0
        self._positions = body.prompt_logprobs is not None

    def choice(self, choice: Choice) -> dict[str, Any]:
        content = chat_content(self._names, choice.logprobs, self._top) if self._logprobs else None
        return {
            "index": choice.index,
            "message": {"role": "assistant", "content": "".join(choice.text), "refusal": None},
            "logprobs": None if content is None else {"content": content, "refusal": None},
            "finish_reason": choice.finish_reason,
            "stop_reason": choice.stop_reason,
        }

    def top_level(self, choices: Sequence[Choice]) -> dict[str, Any]:
        if not self._positions:
            return {}
        return {"prompt_logprobs": prompt_positions(self._names, choices[0].prompt_logprobs)}

    def opening(self, choice: Choice) -> dict[str, Any] | None:
        delta = {"role": "assistant", "content": ""}
        return {"index": choice.index, "delta": delta, "logprobs": None, "finish_reason": None}

    def text_key(self) -> tuple[bytes, bytes]:
        return b'"delta":{"content":', b"}"

    def delta_logprobs(self, choice: Choice, piece: Piece) -> Any:  # noqa: ARG002 - a dialect's signature
        if not self._logprobs or not piece.delta.logprobs:
            return None
        return {"content": chat_content(self._names, piece.delta.logprobs, self._top), "refusal": None}
