"""Stages of the HTTP server: its start, and times as a client of its own process sees them. No torch here."""

import statistics
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise

from octavo.base.errors import EngineError
from octavo.bench.data import even
from octavo.bench.gpu.child import Report
from octavo.bench.gpu.server import Server, bodies, body
from octavo.bench.gpu.setting import Setting
from octavo.bench.raw import Answer, Group
from octavo.bench.stats import percentile

START_CAP_S = 120.0
SETTLE_CAP_S = 40.0
PREFIX_ROUNDS = 7
TAIL = 16  # tokens behind a cached prefix


class _Http:
    """A server that is started when the first job needs it."""

    def __init__(self, setting: Setting, shape: str) -> None:
        self._sizes = setting.sizes
        self._server = Server(setting, shape)
        self._running = False
        self._seed = 50_000

    @contextmanager
    def opened(self) -> Iterator[None]:
        try:
            yield
        finally:
            self._server.stop()

    @property
    def server(self) -> Server:
        """The server, running, settled and with its first requests behind it."""
        if not (self._running and self._server.alive):
            self._server.stop()
            self._server.start(START_CAP_S)
            self._up()
        return self._server

    def _up(self) -> float:
        """Returns the seconds until the server had settled."""
        self._running = True
        settled = self._server.settle(SETTLE_CAP_S, self._sizes.settle_pause_s)
        warm = Group(
            bodies=bodies(self._sizes.load_at_once, 32, 16, seed=self._next()), at_once=self._sizes.load_at_once
        )
        _sound(self._server.send(warm).groups[0])
        return settled

    def idle_first(self, report: Report, point: str, length: int) -> None:
        """One request at a time, for one token; the median."""
        count = self._sizes.idle_requests
        warm = Group(bodies=bodies(3, length, 2, seed=self._next()))
        asked = Group(bodies=bodies(count, length, 1, seed=self._next()))
        self.server.send(warm)
        answers = _sound(self.server.send(asked).groups[0])
        report(point, 1e3 * statistics.median(answer.ttft for answer in answers))

    def _next(self) -> int:
        self._seed += 1
        return self._seed


class HttpSmall(_Http):
    """Qwen3-0.6B: T17, T11, T12, T13, T15."""

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting, setting.small)

    @property
    def jobs(self) -> dict[str, Callable[[Report], None]]:
        return {
            "T17": self.start,
            "T11": lambda report: self.idle_first(report, "T11", self._sizes.first_lens[0]),
            "T12": self.prefixes,
            "T13": self.load,
            "T15": self.interference,
        }

    def start(self, report: Report) -> None:
        """With no compiled kernels, then again with those that the first start left."""
        report("T17", self._server.start(START_CAP_S))
        self._server.stop()
        first = self._server.start(START_CAP_S)
        report("T17.warm", first)
        report("T17.settled", first + self._up())

    def prefixes(self, report: Report) -> None:
        """Prompts that differ in their last tokens only; the first is not counted."""
        for point, length in zip(("T12", "T12.16384"), self._sizes.prefixes):
            shared = even(1, length, 1, seed=self._next()).prompts[0]
            tails = even(PREFIX_ROUNDS + 1, TAIL, 1, seed=self._next()).prompts
            asked = Group(bodies=[body([*shared, *tail], 1) for tail in tails])
            cold, *warm = _sound(self.server.send(asked).groups[0])
            report(point, 1e3 * statistics.median(answer.ttft for answer in warm), f"cold {1e3 * cold.ttft:.1f} ms")

    def load(self, report: Report) -> None:
        """A closed loop: as one answer ends, the next request is sent."""
        sizes = self._sizes
        self.server.send(self._crowd(sizes.load_at_once))
        found = self.server.send(self._crowd(sizes.load_requests))
        answers = _sound(found.groups[0])
        gaps = [later - earlier for answer in answers for earlier, later in pairwise(answer.arrivals)]
        report("T13", sum(answer.tokens for answer in answers) / found.seconds)
        report("T13.ttft", 1e3 * statistics.median(answer.ttft for answer in answers))
        report("T13.itl", 1e3 * percentile(gaps, 99))
        report("T13.client", 100 * found.cpu_share)

    def _crowd(self, count: int) -> Group:
        sizes = self._sizes
        made = bodies(count, sizes.load_in, sizes.load_out, seed=self._next())
        return Group(bodies=made, at_once=sizes.load_at_once)

    def interference(self, report: Report) -> None:
        """Long streams, alone for a while, then with a long prompt at every beat.

        Gaps that end while such a prompt is between its sending and its first token are held against all the others:
        both lie over the same stretch of the streams, whose steps grow longer with their contexts. A prompt that the
        end of the run cuts off is under way until then.
        """
        sizes = self._sizes
        quiet_end = sizes.stream_settle_s + sizes.stream_idle_s
        streams = Group(
            bodies=bodies(sizes.streams, sizes.first_lens[0], sizes.stream_out, seed=self._next()),
            at_once=sizes.streams,
        )
        prompts = Group(
            bodies=bodies(sizes.long_prompts, sizes.long_prompt, 1, seed=self._next()),
            start_s=quiet_end,
            every_s=sizes.long_every_s,
        )
        stop = quiet_end + sizes.long_prompts * sizes.long_every_s
        found = self.server.send(streams, prompts, stop_s=stop)
        begun = [answer for answer in found.groups[0] if answer.arrivals]
        read = [answer for answer in found.groups[1] if answer.arrivals]
        if len(begun) < sizes.streams or not read:
            raise EngineError(f"{len(begun)} streams began and {len(read)} long prompts were read")
        spans = [(answer.sent, (answer.arrivals or [stop])[0]) for answer in found.groups[1] if answer.sent]
        loaded = gaps_within(begun, spans)
        idle = gaps_within(begun, between(spans, sizes.stream_settle_s, stop))
        if not idle or not loaded:
            raise EngineError("the streams ended too early to compare")
        quiet, busy = percentile(idle, 99), percentile(loaded, 99)
        report("T15", busy / quiet)
        report("T15.idle", 1e3 * quiet)
        report("T15.loaded", 1e3 * busy, f"worst {1e3 * max(loaded):.1f} ms")
        report("T15.ttft", 1e3 * statistics.median(answer.ttft for answer in read))


class HttpLarge(_Http):
    """Qwen3-8B: T11."""

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting, setting.large)

    @property
    def jobs(self) -> dict[str, Callable[[Report], None]]:
        return {"T11.8b": lambda report: self.idle_first(report, "T11.8b-1024", self._sizes.first_lens[1])}


def gaps_within(answers: Sequence[Answer], spans: Sequence[tuple[float, float]]) -> list[float]:
    """Times between packets of a stream that end inside one of the spans."""
    return [
        later - earlier
        for answer in answers
        for earlier, later in pairwise(answer.arrivals)
        if any(low <= later <= high for low, high in spans)
    ]


def between(spans: Sequence[tuple[float, float]], low: float, high: float) -> list[tuple[float, float]]:
    """What `spans` leave of the time from `low` to `high`."""
    free, at = [], low
    for begin, end in sorted(spans):
        if begin > at:
            free.append((at, begin))
        at = max(at, end)
    return [*free, (at, high)] if at < high else free


def _sound(answers: list[Answer]) -> list[Answer]:
    """The answers. Raises EngineError when one failed."""
    for answer in answers:
        if answer.error or not answer.done:
            raise EngineError(answer.error or "a stream did not end")
    return answers
