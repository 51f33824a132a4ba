"""What has been delivered of each open request: enough to go on with it in another engine, to the token."""

from array import array
from collections.abc import Collection, Iterator

from msgspec.structs import replace

from octavo.base import scores
from octavo.base.wire import EngineRequest, Progress, TokenOutput
from octavo.engine.stream import Mailbox

MAX_CRASHES = 2
"""Crashes that a request may be part of; then it is suspected of being their cause."""

CRASHED = "the engine crashed twice while it worked on this request"


class Entry:
    """One open request."""

    __slots__ = ("_cached_tokens", "_queued_s", "_scored", "_tokens", "crashes", "mailbox", "request", "sent")

    def __init__(self, request: EngineRequest) -> None:
        self.request = request
        self.mailbox = Mailbox()
        self.sent = False  # whether the engine that runs now has it
        self.crashes = 0
        self._tokens = array("i")
        self._scored = 0
        self._cached_tokens = -1
        self._queued_s = 0.0

    def note(self, output: TokenOutput) -> None:
        """An output is about to be delivered."""
        if output.tokens:
            self._tokens.extend(output.tokens)
        if output.prompt_logprobs:
            self._scored += scores.count(output.prompt_logprobs)
        if self._cached_tokens < 0:
            self._cached_tokens, self._queued_s = output.cached_tokens, output.queued_s

    def note_tokens(self, tokens: list[int]) -> None:
        """The same for tokens with nothing else to them, of a request that has had an output."""
        self._tokens.extend(tokens)

    def resumed(self) -> EngineRequest:
        """The request for an engine that has not seen it."""
        if self._cached_tokens < 0:
            return self.request
        progress = Progress(self._tokens.tolist(), self._scored, self._cached_tokens, self._queued_s)
        return replace(self.request, progress=progress)


class Journal:
    """All open requests, in order of arrival."""

    def __init__(self) -> None:
        self._entries: dict[str, Entry] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, id: str) -> bool:
        return id in self._entries

    def __iter__(self) -> Iterator[Entry]:
        return iter(list(self._entries.values()))

    def open(self, entry: Entry) -> None:
        """From now on its outputs are noted."""
        self._entries[entry.request.id] = entry

    def get(self, id: str) -> Entry | None:
        return self._entries.get(id)

    def close(self, id: str) -> Entry | None:
        """It has ended, or nobody waits for it."""
        return self._entries.pop(id, None)

    def crash(self, on_trial: Collection[str]) -> list[Entry]:
        """The engine that had them is gone. Those that have seen too many crashes are closed and returned.

        If one of them was on trial at that moment, it is those alone: the others got past the place of the last crash.
        """
        hit = [entry for entry in self if entry.sent]
        for entry in hit:
            entry.sent = False
            entry.crashes += 1
        guilty = [entry for entry in hit if entry.crashes >= MAX_CRASHES]
        tried = [entry for entry in guilty if entry.request.id in on_trial]
        if tried:
            for entry in guilty:
                entry.crashes = MAX_CRASHES - 1
        for entry in tried or guilty:
            self.close(entry.request.id)
        return tried or guilty

    def unsent(self) -> list[Entry]:
        """Those that the engine that runs now has not got, in order of arrival."""
        return [entry for entry in self._entries.values() if not entry.sent]
