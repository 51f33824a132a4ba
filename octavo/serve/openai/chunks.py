"""Chunks of a stream. All but the text of a plain chunk is bytes made once a stream."""

from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import Struct

from octavo.serve.openai.dialect import Dialect
from octavo.serve.openai.usage import usage_of
from octavo.text.collect import Collector, TextDelta
from octavo.text.parse.base import Text

encode = msgspec.json.encode


class Options(Struct, frozen=True):
    """How the caller wants the answer sent."""

    stream: bool = False
    usage_at_end: bool = False
    usage_always: bool = False
    token_ids: bool = False


class Chunks:
    """Renders the events of one stream, with what each choice has been sent so far."""

    def __init__(
        self, dialect: Dialect, head: dict[str, Any], options: Options, collectors: Sequence[Collector], n: int
    ) -> None:
        """`n`: choices a prompt."""
        self._dialect = dialect
        self._options = options
        self._collectors = collectors
        self._n = n
        self._open_head = encode({**head, "object": dialect.chunk_object})[:-1] + b","
        self._open = b"data: " + self._open_head + b'"choices":['
        self._before, self._after = dialect.text_key()
        self._tail = b'],"usage":null}\n\n' if options.usage_at_end else b"]}\n\n"
        self._plain_end = self._after + b',"logprobs":null,"finish_reason":null}'
        self._starts: list[bytes | None] = [None] * len(collectors)

    def render(self, index: int, delta: TextDelta) -> bytes:
        """The events of one delta; empty when it has nothing to show yet."""
        start, opening = self._starts[index], b""
        if start is None:
            if not (delta.tokens or delta.text or delta.finish_reason):
                return b""  # a chunk of the prompt was computed
            start = self._starts[index] = self._open + b'{"index":%d,' % index + self._before
            opening = self._opening(index)
        if delta.prompt_logprobs is not None:
            opening += self._prompt(index, delta)
        logprobs = None
        if delta.logprobs is not None or delta.prompt_logprobs is not None:
            logprobs = self._dialect.delta_logprobs(index, self._collectors[index], delta)
        if delta.events is not None and not all(isinstance(event, Text) for event in delta.events):
            return opening + self._spoken(index, delta, logprobs)
        if delta.finish_reason is None and logprobs is None and not self._options.token_ids:
            if not delta.text:
                return opening  # held back: half a character, or what may become a stop string
            return opening + start + encode(delta.text) + self._plain_end + self._end()
        reason = self._dialect.finish_reason(self._collectors[index], delta.finish_reason)
        rest: dict[str, Any] = {"logprobs": logprobs, "finish_reason": reason}
        if delta.finish_reason is not None:
            rest["stop_reason"] = delta.stop_reason
        if self._options.token_ids:
            rest["token_ids"] = delta.tokens
        return opening + start + encode(delta.text) + self._after + b"," + encode(rest)[1:] + self._end()

    def _spoken(self, index: int, delta: TextDelta, logprobs: Any) -> bytes:
        """The events of a delta that holds more than text. What belongs to its tokens goes with the first."""
        chunks: list[dict[str, Any]] = [
            {"index": index, **fields, "logprobs": None, "finish_reason": None}
            for fields in self._dialect.deltas(delta.events or ())
        ]
        if delta.finish_reason is not None or not chunks:
            reason = self._dialect.finish_reason(self._collectors[index], delta.finish_reason)
            chunks.append({"index": index, "delta": {}, "logprobs": None, "finish_reason": reason})
            if reason is not None:
                chunks[-1]["stop_reason"] = delta.stop_reason
            elif logprobs is None and not self._options.token_ids:
                return b""
        chunks[0]["logprobs"] = logprobs
        if self._options.token_ids:
            chunks[0]["token_ids"] = delta.tokens
        return b"".join(self._open + encode(chunk) + self._end() for chunk in chunks)

    def usage_event(self) -> bytes:
        """The chunk without choices that ends a stream with include_usage."""
        return self._open + b'],"usage":' + encode(usage_of(self._collectors, self._n)) + b"}\n\n"

    def _opening(self, index: int) -> bytes:
        rendered = self._dialect.opening(index)
        if self._options.token_ids:
            empty = msgspec.json.decode(b"{" + self._before + b'""' + self._after + b"}")
            rendered = rendered or {"index": index, **empty, "logprobs": None, "finish_reason": None}
            rendered["prompt_token_ids"] = self._collectors[index].prompt_tokens
        return b"" if rendered is None else self._open + encode(rendered) + self._end()

    def _prompt(self, index: int, delta: TextDelta) -> bytes:
        fields = self._dialect.prompt_event(index, delta)
        return b"" if fields is None else b"data: " + self._open_head + encode(fields)[1:] + b"\n\n"

    def _end(self) -> bytes:
        if self._options.usage_always:
            return b'],"usage":' + encode(usage_of(self._collectors, self._n)) + b"}\n\n"
        return self._tail
