"""Steps of a turn as Anthropic's content blocks, and as the events that build them up on the other side."""

from collections.abc import Sequence
from typing import Any

import msgspec

from octavo.serve.sse import named_event
from octavo.serve.turns import CallArguments, CallBegun, Ended, Said, Step, Thought
from octavo.text.collect import Collector

_STOPS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}


def event(value: dict[str, Any]) -> bytes:
    """One event; its name is its type."""
    return named_event(value["type"], msgspec.json.encode(value))


PING = event({"type": "ping"})


class MessageBuilder:
    """The message so far. One block is open at a time; a step of another kind closes it."""

    def __init__(self, id: str, model: str) -> None:
        self._head = {"id": id, "type": "message", "role": "assistant", "model": model}
        self._blocks: list[dict[str, Any]] = []
        self._parts: list[str] = []
        self._open = ""
        self._stop_reason: str | None = None
        self._stop_sequence: str | None = None
        self._collector: Collector | None = None

    def take(self, collector: Collector, steps: Sequence[Step]) -> bytes:
        """The events of these steps; the first ones before them."""
        begun = b""
        if self._collector is None:
            self._collector = collector
            message = {**self.message(), "usage": self._counts(output=1)}
            begun = event({"type": "message_start", "message": message}) + PING
        return begun + b"".join([self._feed(step) for step in steps])

    def _feed(self, step: Step) -> bytes:
        if isinstance(step, Said):
            return self._grow("text", {"type": "text", "text": ""}, "text_delta", step.text) if step.text else b""
        if isinstance(step, Thought):
            block = {"type": "thinking", "thinking": "", "signature": ""}
            return self._grow("thinking", block, "thinking_delta", step.text)
        if isinstance(step, CallBegun):
            closed = self._close()
            return closed + self._begin_block({"type": "tool_use", "id": step.id, "name": step.name, "input": {}})
        if isinstance(step, CallArguments):
            return self._delta("input_json_delta", step.text)
        self._end(step)
        return self._close()

    def finish(self) -> bytes:
        """The last events."""
        closed = self._close()
        delta = {"stop_reason": self._stop_reason, "stop_sequence": self._stop_sequence}
        return (
            closed
            + event({"type": "message_delta", "delta": delta, "usage": self._counts()})
            + event({"type": "message_stop"})
        )

    def message(self) -> dict[str, Any]:
        """The message so far."""
        self._close()
        return {
            **self._head,
            "content": self._blocks,
            "stop_reason": self._stop_reason,
            "stop_sequence": self._stop_sequence,
            "usage": self._counts(),
        }

    def _grow(self, kind: str, block: dict[str, Any], delta: str, text: str) -> bytes:
        opened = b""
        if self._open != kind:
            opened = self._close() + self._begin_block(block)
        return opened + self._delta(delta, text)

    def _begin_block(self, block: dict[str, Any]) -> bytes:
        self._open = block["type"]
        started = event({"type": "content_block_start", "index": len(self._blocks), "content_block": block})
        self._blocks.append(dict(block))
        return started

    def _delta(self, kind: str, text: str) -> bytes:
        self._parts.append(text)
        field = {"text_delta": "text", "thinking_delta": "thinking"}.get(kind, "partial_json")
        delta = {"type": kind, field: text}
        return event({"type": "content_block_delta", "index": len(self._blocks) - 1, "delta": delta})

    def _close(self) -> bytes:
        if not self._open:
            return b""
        block, text = self._blocks[-1], "".join(self._parts)
        index = len(self._blocks) - 1
        signed = b""
        if self._open == "tool_use":
            block["input"] = _object(text)
        else:
            block[self._open] = text
        if self._open == "thinking":
            delta = {"type": "signature_delta", "signature": ""}
            signed = event({"type": "content_block_delta", "index": index, "delta": delta})
        self._open, self._parts = "", []
        return signed + event({"type": "content_block_stop", "index": index})

    def _counts(self, output: int | None = None) -> dict[str, int]:
        """Anthropic counts cached input apart from the rest. `output`: what to report instead of the tokens so far."""
        found = self._collector
        assert found is not None, "nothing has come yet"
        return {
            "input_tokens": found.num_prompt_tokens - found.cached_tokens,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": found.cached_tokens,
            "output_tokens": found.num_output_tokens if output is None else output,
        }

    def _end(self, step: Ended) -> None:
        self._stop_reason = _STOPS.get(step.finish_reason, "end_turn")
        if step.finish_reason == "stop" and isinstance(step.stop_reason, str):
            self._stop_reason, self._stop_sequence = "stop_sequence", step.stop_reason


def _object(text: str) -> Any:
    """Arguments as a value; a call cut short by max_tokens has none."""
    try:
        return msgspec.json.decode(text or "{}")
    except msgspec.DecodeError:
        return {}
