"""`octavo top`: a running server, live: throughput, queue, KV cache, latencies, and who uses it."""

import contextlib
import sys
import time
from collections import deque
from collections.abc import Iterable
from typing import Annotated, Any

from msgspec import Struct

from octavo.base.config import doc
from octavo.base.errors import EngineError, UserError
from octavo.base.wire import SLEEP_STATES
from octavo.cli.client import Client
from octavo.cli.command import Command
from octavo.cli.connect import DEFAULT_URL
from octavo.cli.scrape import Reading, Span, read

HISTORY = 120
BARS = "▁▂▃▄▅▆▇█"
LATENCIES = (
    ("first token", "time_to_first_token_seconds"),
    ("between tokens", "inter_token_latency_seconds"),
    ("queue", "request_queue_time_seconds"),
    ("whole request", "e2e_request_latency_seconds"),
)


class TopOptions(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which server, and how often to look."""

    url: Annotated[str, doc("A running server.")] = DEFAULT_URL
    api_key: Annotated[str | None, doc("Key sent to the server as a bearer token.")] = None
    interval: Annotated[float, doc("Seconds between two looks.", ge=0.2, le=3600)] = 1.0
    once: Annotated[bool, doc("Look once over one interval, print it as plain text and end.")] = False


class View(Struct, frozen=True):
    """What is shown, worked out from two readings."""

    model: str
    version: str  # or what it does instead of serving
    rows: list[tuple[str, str, str]]  # name, value, remark
    latencies: list[tuple[str, str, str, str]]  # name, p50, p95, p99
    users: list[tuple[str, str, str, str]]  # key or adapter, tokens a second, sequences, first token p95
    generated: float  # tokens a second
    kv: float


def look(span: Span) -> View:
    """The figures of the time between two readings."""
    now = span.now
    total = now.total
    hits = span.share("prefix_cache_hits_total", "prefix_cache_queries_total")
    refused = span.rate("request_errors_total")
    made = span.rate("generation_tokens_total")
    rows = [
        ("generated", f"{made:,.1f} tok/s", f"{total('generation_tokens_total'):,.0f} tokens in all"),
        ("prompts", f"{span.rate('prompt_tokens_total'):,.1f} tok/s", f"{total('prompt_tokens_total'):,.0f} in all"),
        ("requests", f"{span.rate('request_success_total'):,.2f} /s", _ends(now)),
        ("running", f"{total('num_requests_running'):,.0f}", f"{span.rate('engine_steps_total'):,.1f} steps/s"),
        ("waiting", f"{total('num_requests_waiting'):,.0f}", f"{refused:,.2f} refused/s" if refused else ""),
        ("KV cache", f"{total('kv_cache_usage_perc'):.1%}", f"{total('num_preemptions_total'):,.0f} preemptions"),
        ("prefix hits", "-" if hits is None else f"{hits:.1%}", "of prompt tokens"),
    ]
    failures = total("engine_step_failures_total")
    if failures:
        rows.append(("failed steps", f"{failures:,.0f}", "see the server's log"))
    restarts = total("engine_restarts_total")
    if restarts:
        rows.append(
            ("restarts", f"{restarts:,.0f}", f"of the engine; the last took {total('engine_restart_seconds'):.1f} s")
        )
    models = now.values("num_requests_running", "model_name")
    versions = now.values("build_info", "version")
    return View(
        model=", ".join(models) or "?",
        version=f"octavo {versions[0]}{_rest(now)}" if versions else "is loading",
        rows=rows,
        latencies=[(name, *_spread(span, series)) for name, series in LATENCIES],
        users=[*_users(span, "key"), *_users(span, "adapter")],
        generated=made,
        kv=total("kv_cache_usage_perc"),
    )


def _rest(now: Reading) -> str:
    down = [name for name in SLEEP_STATES[1:] if now.total("engine_sleep_state", sleep_state=name)]
    return f" sleeps ({down[0].replace('_', ' ')})" if down else ""


def _ends(now: Reading) -> str:
    counts = [(reason, now.total("request_success_total", finished_reason=reason)) for reason in ("stop", "length")]
    bad = sum(now.total("request_success_total", finished_reason=reason) for reason in ("abort", "error"))
    return ", ".join([*(f"{count:,.0f} {reason}" for reason, count in counts), f"{bad:,.0f} broken off"])


def _users(span: Span, label: str) -> Iterable[tuple[str, str, str, str]]:
    for value in span.now.values(f"{label}_generation_tokens_total", label):
        mine = {label: value}
        yield (
            f"{label} {value}",
            f"{span.rate(f'{label}_generation_tokens_total', **mine):,.1f}",
            f"{span.now.total(f'{label}_requests_total', **mine):,.0f}",
            _time(span.quantile(0.95, f"{label}_time_to_first_token_seconds", **mine)),
        )


def _spread(span: Span, series: str) -> tuple[str, str, str]:
    middle, high, highest = (_time(span.quantile(share, series)) for share in (0.5, 0.95, 0.99))
    return middle, high, highest


def _time(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    return f"{seconds * 1e3:,.1f} ms" if seconds < 1 else f"{seconds:,.2f} s"


def plain(view: View) -> str:
    """For a pipe."""
    lines = [f"{view.model}  {view.version}", ""]
    lines += [f"  {name:<14} {value:>16}   {remark}".rstrip() for name, value, remark in view.rows]
    lines += ["", f"  {'':<14} {'p50':>12} {'p95':>12} {'p99':>12}"]
    lines += [f"  {name:<14} {p50:>12} {p95:>12} {p99:>12}" for name, p50, p95, p99 in view.latencies]
    if view.users:
        lines += ["", f"  {'':<24} {'tok/s':>10} {'sequences':>10} {'first p95':>12}"]
        lines += [f"  {name[:24]:<24} {rate:>10} {count:>10} {ttft:>12}" for name, rate, count, ttft in view.users]
    return "\n".join(lines)


def spark(values: Iterable[float], width: int, top: float | None = None) -> str:
    """The last `width` values as bars; `top` is the full height, unset: the largest of them."""
    shown = list(values)[-width:]
    full = max([*shown, 1e-9]) if top is None else top
    return "".join(BARS[min(len(BARS) - 1, int(value / full * (len(BARS) - 1) + 0.5))] for value in shown)


class Screen:
    """The view on a terminal, with a short history."""

    def __init__(self) -> None:
        self._made: deque[float] = deque(maxlen=HISTORY)
        self._kv: deque[float] = deque(maxlen=HISTORY)

    def draw(self, view: View, url: str) -> Any:
        """What rich shows."""
        from rich.columns import Columns
        from rich.console import Group
        from rich.panel import Panel
        from rich.text import Text

        self._made.append(view.generated)
        self._kv.append(view.kv)
        head = Text.assemble((view.model, "bold"), ("  " + url, "dim"), (f"  {view.version}", "dim"))
        trends = Text.assemble(
            ("tok/s ", "dim"), (spark(self._made, 48), "green"), f" {view.generated:,.0f}\n",
            ("KV    ", "dim"), (spark(self._kv, 48, 1.0), "yellow"), f" {view.kv:.0%}",
        )  # fmt: skip
        figures = _table(("", "now", ""), view.rows, ("cyan", "bold", "dim"))
        latencies = _table(("", "p50", "p95", "p99"), view.latencies, ("cyan", "bold", "", ""))
        parts: list[Any] = [head, Panel(trends, title="trend"), Columns([Panel(figures), Panel(latencies)])]
        if view.users:
            users = _table(("", "tok/s", "sequences", "first p95"), view.users, ("cyan", "bold", "", ""))
            parts.append(Panel(users, title="keys and adapters"))
        return Group(*parts, Text("Ctrl-C leaves", style="dim"))


def _table(heads: tuple[str, ...], rows: Iterable[tuple[str, ...]], styles: tuple[str, ...]) -> Any:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False)
    for place, (head, style) in enumerate(zip(heads, styles)):
        left = place == 0 or (not head and place == len(heads) - 1)
        table.add_column(head, style=style, justify="left" if left else "right", no_wrap=True)
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    return table


def run(options: TopOptions) -> int:
    """Watch until Ctrl-C; with --once, or into a pipe, look once."""
    client = Client(options.url, options.api_key)
    before = read(client.text("/metrics"))
    if options.once or not sys.stdout.isatty():
        time.sleep(options.interval)
        print(plain(look(Span(before, read(client.text("/metrics"))))))
        return 0
    with contextlib.suppress(KeyboardInterrupt):
        _watch(client, options, before)
    return 0


def _watch(client: Client, options: TopOptions, before: Reading) -> None:
    from rich.live import Live
    from rich.text import Text

    screen = Screen()
    with Live(Text("…"), screen=True, auto_refresh=False) as live:
        while True:
            time.sleep(options.interval)
            try:
                now = read(client.text("/metrics"))
            except (EngineError, UserError) as error:  # it restarts, or its key has changed: go on looking
                live.update(Text(f"{options.url}: {error}"), refresh=True)
                continue
            live.update(screen.draw(look(Span(before, now)), options.url), refresh=True)
            before = now


COMMAND = Command(
    name="top",
    summary="Watch a running server: throughput, queue, KV cache, latencies, use by key.",
    roots=(TopOptions,),
    run=run,
    positional="url",
    example="octavo top http://127.0.0.1:8000 --api-key KEY",
)
