"""Steps of a turn as output items, and as the events that build them up on the other side.

One item is open at a time. Every event has the next sequence number, so a reader that was cut off can say after
which one it wants to go on.
"""

import time
import uuid
from collections.abc import Sequence
from typing import Any

import msgspec

from octavo.serve.errors import ErrorDetail
from octavo.serve.sse import named_event
from octavo.serve.turns import CallArguments, CallBegun, Ended, Said, Step, Thought
from octavo.text.collect import Collector


class ResponseBuilder:
    """The response so far; `response` is its object, `feed` gives the events of a step."""

    def __init__(self, response: dict[str, Any]) -> None:
        self.response = response
        self._items: list[dict[str, Any]] = response["output"]
        self._parts: list[str] = []
        self._logprobs: list[msgspec.Raw] = []
        self._open = ""
        self._sequence = 0
        self._ended: Ended | None = None
        self._collector: Collector | None = None
        self._begun = False

    def take(self, collector: Collector, steps: Sequence[Step]) -> bytes:
        """The events of these steps; the first ones before them."""
        self._collector = collector
        return self._begin() + b"".join([self._feed(step) for step in steps])

    def _begin(self) -> bytes:
        if self._begun:
            return b""
        self._begun = True
        self.response["status"] = "in_progress"
        return self._whole("response.created") + self._whole("response.in_progress")

    def _feed(self, step: Step) -> bytes:
        if isinstance(step, Said):
            return self._say(step)
        if isinstance(step, Thought):
            opened = self._reopen("reasoning", "rs")
            self._parts.append(step.text)
            return opened + self._part_event("response.reasoning_text.delta", delta=step.text)
        if isinstance(step, CallBegun):
            return self._close() + self._begin_call(step)
        if isinstance(step, CallArguments):
            self._parts.append(step.text)
            return self._event("response.function_call_arguments.delta", **self._place(), delta=step.text)
        self._ended = step
        return self._close()

    def finish(self) -> bytes:
        """The last events: completed, or incomplete when the tokens ran out."""
        closed = self._close()
        status = self.response["status"] = self._end_status
        if status == "incomplete":
            self.response["incomplete_details"] = {"reason": "max_output_tokens"}
            if self._items:
                self._items[-1]["status"] = "incomplete"
        else:
            self.response["completed_at"] = int(time.time())
        self.response["usage"] = self._usage()
        return closed + self._whole(f"response.{status}")

    def fail(self, error: ErrorDetail) -> bytes:
        """The last events of a response that failed, be it before the first ones."""
        closed = self._begin() + self.stop("failed")
        self.response["usage"] = self._usage()
        code = "rate_limit_exceeded" if error.type == "rate_limit_error" else "server_error"
        self.response["error"] = {"code": code, "message": error.message}
        return closed + self._whole("response.failed")

    def stop(self, status: str) -> bytes:
        """Ends it where it stands: cancelled, or failed."""
        closed = self._close()
        self.response["status"] = status
        if self._items and self._items[-1].get("status") == "in_progress":
            self._items[-1]["status"] = "incomplete"
        return closed

    @property
    def _end_status(self) -> str:
        return "incomplete" if self._ended is not None and self._ended.finish_reason == "length" else "completed"

    def _say(self, step: Said) -> bytes:
        if not step.text and self._open != "message":
            return b""
        opened = self._reopen("message", "msg")
        self._parts.append(step.text)
        self._logprobs += step.logprobs
        return opened + self._part_event("response.output_text.delta", delta=step.text, logprobs=step.logprobs)

    def _reopen(self, kind: str, prefix: str) -> bytes:
        """An item of content with one part, text or thoughts, unless it is open already."""
        if self._open == kind:
            return b""
        closed = self._close()
        item: dict[str, Any] = {"id": f"{prefix}_{uuid.uuid4().hex}", "type": kind, "status": "in_progress"}
        item["role" if kind == "message" else "summary"] = "assistant" if kind == "message" else []
        item["content"] = []
        added = self._begin_item(item)
        return closed + added + self._part_event("response.content_part.added", part=self._part(kind, ""))

    def _begin_call(self, step: CallBegun) -> bytes:
        call = {"call_id": step.id or f"call_{uuid.uuid4().hex}", "name": step.name, "arguments": ""}
        return self._begin_item(
            {"id": f"fc_{uuid.uuid4().hex}", "type": "function_call", "status": "in_progress", **call}
        )

    def _begin_item(self, item: dict[str, Any]) -> bytes:
        self._open = item["type"]
        self._items.append(item)
        return self._event("response.output_item.added", output_index=len(self._items) - 1, item=item)

    def _close(self) -> bytes:
        """Ends the open item."""
        if not self._open:
            return b""
        kind, item, text = self._open, self._items[-1], "".join(self._parts)
        if kind == "function_call":
            item["arguments"] = text
            out = self._event(
                "response.function_call_arguments.done", **self._place(), name=item["name"], arguments=text
            )
        else:
            if kind == "message":
                out = self._part_event("response.output_text.done", text=text, logprobs=self._logprobs)
            else:
                out = self._part_event("response.reasoning_text.done", text=text)
            part = self._part(kind, text)
            out += self._part_event("response.content_part.done", part=part)
            item["content"] = [part]
        item["status"] = self._end_status
        self._open, self._parts, self._logprobs = "", [], []
        return out + self._event("response.output_item.done", output_index=len(self._items) - 1, item=item)

    def _part(self, kind: str, text: str) -> dict[str, Any]:
        if kind == "message":
            return {"type": "output_text", "text": text, "annotations": [], "logprobs": self._logprobs}
        return {"type": "reasoning_text", "text": text}

    def _place(self) -> dict[str, Any]:
        return {"item_id": self._items[-1]["id"], "output_index": len(self._items) - 1}

    def _part_event(self, kind: str, **fields: Any) -> bytes:
        return self._event(kind, **self._place(), content_index=0, **fields)

    def _whole(self, kind: str) -> bytes:
        return self._event(kind, response=self.response)

    def _event(self, kind: str, **fields: Any) -> bytes:
        self._sequence += 1
        value = {"type": kind, "sequence_number": self._sequence - 1, **fields}
        return named_event(kind, msgspec.json.encode(value))

    def _usage(self) -> dict[str, Any]:
        """Token counts under the names of this API; zeros where nothing has come."""
        found = self._collector
        prompt, output = (found.num_prompt_tokens, found.num_output_tokens) if found else (0, 0)
        thought = found.speaker.reasoning_tokens if found and found.speaker else 0
        return {
            "input_tokens": prompt,
            "input_tokens_details": {"cached_tokens": found.cached_tokens if found else 0},
            "output_tokens": output,
            "output_tokens_details": {"reasoning_tokens": thought},
            "total_tokens": prompt + output,
        }
