"""A run of the offline API: its prompts on their way, their outputs read, and the bar that shows it."""

import gc
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from msgspec.structs import replace
from tqdm.auto import tqdm

from octavo.base.lines import Lines
from octavo.base.wire import TokenOutput
from octavo.llm.outputs import RequestOutput, completion
from octavo.text.request import Prepared
from octavo.text.told import told_of_prompt


@dataclass(slots=True)
class Job:
    """One prompt on its way: its sequences, and how many of them still run."""

    prepared: Prepared
    prompt: str | None
    left: int = 0

    def __post_init__(self) -> None:
        self.left = len(self.prepared.requests)

    def result(self) -> RequestOutput:
        collectors = self.prepared.collectors
        first = collectors[0]
        return RequestOutput(
            request_id=self.prepared.requests[0].id,
            prompt=self.prompt,
            prompt_token_ids=list(self.prepared.prompt_tokens),
            prompt_logprobs=told_of_prompt(first.prompt_logprobs) if first.prompt_logprobs is not None else None,
            outputs=[completion(collector) for collector in collectors],
            finished=self.left == 0,
            num_cached_tokens=max(collector.cached_tokens for collector in collectors),
        )


class Progress:
    """The bar: prompts done, tokens a second in and out."""

    def __init__(self, total: int, shown: bool) -> None:
        # Even one that shows nothing takes as long to make as a prompt to check.
        self._bar = tqdm(total=total, desc="Processed prompts", unit="prompt") if shown else None
        self._begin = time.monotonic()
        self._in = self._out = 0

    def __enter__(self) -> "Progress":
        return self

    def __exit__(self, *exc: object) -> None:
        if self._bar is not None:
            self._bar.close()

    def came(self, tokens: int) -> None:
        """So many more tokens."""
        self._out += tokens

    def ended(self, job: Job) -> None:
        """A sequence of `job` has ended."""
        if self._bar is not None and job.left == 0:
            self._in += len(job.prepared.prompt_tokens)
            seconds = max(time.monotonic() - self._begin, 1e-9)
            speed = f"in {self._in / seconds:.1f} tok/s, out {self._out / seconds:.1f} tok/s"
            self._bar.set_postfix_str(speed, refresh=False)
            self._bar.update()


class Reader:
    """Gives the outputs of a run to their collectors: at once where the text may end a sequence, else at its end."""

    def __init__(self, jobs: "list[Job]", progress: "Progress") -> None:
        self._progress = progress
        self._owners = {
            request.id: (job, collector)
            for job in jobs
            for request, collector in zip(job.prepared.requests, job.prepared.collectors)
        }
        self._unread: dict[str, list[int]] = {id: [] for id in self._owners}
        self._scored = {id: bytearray() for id in self._owners}  # lines of log-probabilities of what is unread
        self._ids: list[str] = []  # of the last step; while nobody comes or goes it is the very same list
        self._lines: list[list[int]] = []  # what is unread of these
        self._told = Lines()
        self._scores: list[bytearray] = []
        self._eager = {id for id, (_, collector) in self._owners.items() if not collector.patient}

    def take(self, output: TokenOutput) -> bool:
        """True to end the sequence early."""
        self._told.settle()
        job, collector = self._owners[output.id]
        self._progress.came(len(output.tokens))
        unread, scored = self._unread[output.id], self._scored[output.id]
        if unread:
            output = replace(output, tokens=[*unread, *output.tokens], logprobs=bytes(scored) + output.logprobs)
            unread.clear()
            scored.clear()
        delta = collector.feed(output)
        if delta.finish_reason is not None:
            job.left -= 1
            self._progress.ended(job)
        return delta.needs_abort

    def take_tokens(self, ids: list[str], tokens: list[int], logprobs: list[bytes]) -> list[str]:
        """One token for each of `ids`, with a line of log-probabilities for who asked; those to end early."""
        if ids is not self._ids:
            self._ids, self._lines = ids, list(map(self._unread.__getitem__, ids))
            self._scores = list(map(self._scored.__getitem__, ids))
        self._told.add(self._lines, tokens)
        if logprobs:
            deque(map(bytearray.extend, self._scores, logprobs), maxlen=0)
        self._progress.came(len(ids))
        return [id for id in ids if id in self._eager and self.take(TokenOutput(id, []))] if self._eager else []


@contextmanager
def settled_heap() -> Iterator[None]:
    """Inside, the collector passes over what was there before: a large heap costs tens of milliseconds a walk.

    A program that has frozen objects itself is left alone.
    """
    if gc.get_freeze_count():
        yield
        return
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
