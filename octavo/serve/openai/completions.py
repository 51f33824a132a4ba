"""``/v1/completions``: text or token ids, one or many, continued."""

from collections.abc import Sequence
from typing import Any

from octavo.base.errors import UserError
from octavo.serve.calls import Call, Reply
from octavo.serve.decode import Schema
from octavo.serve.openai.answer import Answer, bounded_call, options_of
from octavo.serve.openai.fields import SILENT
from octavo.serve.openai.logprobs import LegacyLogprobs, names_of, prompt_positions
from octavo.serve.openai.prepare import begin, check_positions, prompt_sequences, sampling
from octavo.serve.openai.schema import CompletionRequest
from octavo.text.collect import Collector, TextDelta
from octavo.text.logprobs import PositionLogprobs, Positions
from octavo.text.parse.base import Event
from octavo.text.request import Prepared
from octavo.text.tokenizer import Tokenizer

DEFAULT_MAX_TOKENS = 16
IDS_ARE_CHEAPER = 128  # than text that must be tokenized

_SCHEMA = Schema(CompletionRequest, SILENT)


async def create(call: Call) -> Reply | None:
    """Continues each prompt `n` times; choice ``p * n + i`` is the i-th continuation of prompt p."""
    ticket, body = await begin(call, _SCHEMA, "cmpl")
    options = options_of(body)
    if body.logprob_token_ids and body.logprobs is None:
        raise UserError("logprob_token_ids needs logprobs.", param="logprob_token_ids")
    params = sampling(ticket.backend, body, DEFAULT_MAX_TOKENS)
    if body.logprobs is not None:
        params = params.replace(logprobs=body.logprobs)
        if body.echo:
            params = params.replace(prompt_logprobs=max(params.prompt_logprobs or 0, body.logprobs))
    async with bounded_call(call):
        ids = body.prompt and not isinstance(body.prompt[0], str)
        size = call.body_bytes // IDS_ARE_CHEAPER if ids else call.body_bytes
        prepared = await call.service.off_loop(size, prompt_sequences, ticket, body, params)
    check_positions(prepared, "logprobs" if body.prompt_logprobs is None else "prompt_logprobs")
    dialect = _Completions(ticket.backend.text.tokenizer, body, prepared)
    return await Answer(call, ticket.backend, dialect, prepared, ticket.head, options).run()


class _Completions:
    """The completions dialect. The collectors put an echoed prompt before the text themselves."""

    whole_object = "text_completion"
    chunk_object = "text_completion"

    def __init__(self, tokenizer: Tokenizer, body: CompletionRequest, prepared: Sequence[Prepared]) -> None:
        names = names_of(tokenizer, bool(body.return_tokens_as_token_ids))
        self._logprobs = body.logprobs is not None
        self._echo = bool(body.echo)
        self._positions = body.prompt_logprobs is not None
        choices = sum(len(each.requests) for each in prepared)
        shown = len(body.logprob_token_ids or ()) or body.logprobs or 0
        self._lines = [LegacyLogprobs(names, shown) for _ in range(choices)]

    def choice(self, index: int, collector: Collector) -> dict[str, Any]:
        rendered: dict[str, Any] = {
            "index": index,
            "text": collector.text,
            "logprobs": self._render(index, collector, collector.prompt_logprobs, collector.logprobs),
            "finish_reason": collector.finish_reason,
            "stop_reason": collector.stop_reason,
        }
        if self._positions:
            rendered["prompt_logprobs"] = prompt_positions(collector.prompt_logprobs or [])
        return rendered

    def top_level(self, collectors: Sequence[Collector]) -> dict[str, Any]:  # noqa: ARG002 - a dialect's signature
        return {}

    def opening(self, index: int) -> dict[str, Any] | None:  # noqa: ARG002
        return None

    def prompt_event(self, index: int, delta: TextDelta) -> dict[str, Any] | None:
        if not self._positions or delta.prompt_logprobs is None:
            return None
        empty = {"index": index, "text": "", "logprobs": None, "finish_reason": None}
        return {"choices": [{**empty, "prompt_logprobs": prompt_positions(delta.prompt_logprobs)}]}

    def text_key(self) -> tuple[bytes, bytes]:
        return b'"text":', b""

    def finish_reason(self, collector: Collector, reason: str | None) -> str | None:  # noqa: ARG002
        return reason

    def deltas(self, events: Sequence[Event]) -> list[dict[str, Any]]:  # noqa: ARG002
        return []  # a completion is text and nothing else

    def delta_logprobs(self, index: int, collector: Collector, delta: TextDelta) -> Any:
        return self._render(index, collector, delta.prompt_logprobs, delta.logprobs)

    def _render(
        self,
        index: int,
        collector: Collector,
        prompt: Sequence[PositionLogprobs | None] | None,
        output: Positions | None,
    ) -> Any:
        """The echoed prompt's positions, then the output's. None when there is nothing to say."""
        if not self._logprobs:
            return None
        echoed = prompt or () if self._echo else ()
        return self._lines[index].render(collector.prompt_tokens[0], echoed, output)
