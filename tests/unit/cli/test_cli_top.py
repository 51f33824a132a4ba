"""`octavo top`: what it reads out of two scrapes, and the command against a page of metrics."""

import http.server
import threading
from collections.abc import Iterator

import pytest

from octavo.base.wire import EngineStats, TokenOutput
from octavo.cli.main import main
from octavo.cli.scrape import Span, read
from octavo.cli.top import Screen, look, plain, spark
from octavo.serve.journey import Journey, Timer
from octavo.serve.metrics import Metrics


class Server:
    """Metrics of a server that generates when told."""

    def __init__(self) -> None:
        self.stats = EngineStats()
        self.metrics = Metrics("tiny", lambda: self.stats)
        self.metrics.started({"load": 1.0}, {"block_size": "16"}, {"version": "9.9"})

    def generate(self, count: int, gap: float, key: str = "") -> None:
        journey = Journey(arrival=0.0, key=key)
        timer = Timer(self.metrics, journey, self.metrics.usages(key), 10)
        for index in range(count):
            timer.feed(TokenOutput("r", [1]), 0.03 + gap * index)
        timer.finish("stop", 0.03 + gap * count)

    def page(self) -> str:
        return self.metrics.render().decode()


def test_rates_shares_and_quantiles_between_two_readings() -> None:
    server = Server()
    server.generate(100, 10.0)  # slow, before the first look
    server.stats = EngineStats(prefix_queries=100, prefix_hits=0)
    before = read(server.page(), at=100.0)
    server.generate(50, 0.003, key="team-a")
    server.stats = EngineStats(running=4, waiting=2, kv_usage=0.5, prefix_queries=300, prefix_hits=150, steps=80)
    span = Span(before, read(server.page(), at=102.0))
    assert span.rate("generation_tokens_total") == 25
    assert span.share("prefix_cache_hits_total", "prefix_cache_queries_total") == 0.75
    gap = span.quantile(0.5, "inter_token_latency_seconds")
    assert gap is not None
    assert 0.002 < gap < 0.005
    assert span.quantile(0.5, "no_such_series") is None
    view = look(span)
    text = plain(view)
    assert "tiny  octavo 9.9" in text
    assert "25.0 tok/s" in text
    assert "key team-a" in text
    rows = {name: value for name, value, _ in view.rows}
    assert (rows["running"], rows["waiting"], rows["KV cache"], rows["prefix hits"]) == ("4", "2", "50.0%", "75.0%")


def test_a_server_that_loads_or_has_restarted_its_engine_says_so() -> None:
    loading = Metrics("tiny", EngineStats).render().decode()
    assert plain(look(Span(read(loading, at=1.0), read(loading, at=2.0)))).startswith("tiny  is loading\n")
    server = Server()
    server.stats = EngineStats(asleep=2)
    assert plain(look(Span(read("", at=1.0), read(server.page(), at=2.0)))).startswith(
        "tiny  octavo 9.9 sleeps (discard all)\n"
    )
    page = Server().page() + 'octavo:engine_restarts_total{model_name="tiny"} 2.0\n'
    page += 'octavo:engine_restart_seconds{model_name="tiny"} 1.25\n'
    rows = look(Span(read(page, at=1.0), read(page, at=2.0))).rows
    assert ("restarts", "2", "of the engine; the last took 1.2 s") in rows


def test_a_restart_of_the_server_gives_no_negative_rate() -> None:
    first, second = Server(), Server()
    first.generate(100, 0.01)
    second.generate(10, 0.01)
    span = Span(read(first.page(), at=0.0), read(second.page(), at=1.0))
    assert span.rate("generation_tokens_total") == 10
    assert span.quantile(0.5, "inter_token_latency_seconds") is not None


def test_a_server_that_has_done_nothing() -> None:
    page = Server().page()
    text = plain(look(Span(read(page, at=0.0), read(page, at=1.0))))
    assert "0.0 tok/s" in text
    assert "nan" not in text


def test_bars() -> None:
    assert spark([0, 1, 2, 4], 3) == "▃▅█"
    assert spark([0.5], 5, 1.0) == "▅"
    assert spark([], 5) == ""


def test_the_screen_draws() -> None:
    from rich.console import Console

    server = Server()
    server.generate(5, 0.01, key="[red]team[/red]")
    span = Span(read(server.page(), at=0.0), read(server.page(), at=1.0))
    console = Console(width=100, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(Screen().draw(look(span), "http://somewhere"))
    text = console.export_text()
    assert "first token" in text
    assert "[red]team[/red]" in text


class Page(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        known = self.headers.get("authorization") == "Bearer right"
        body = self.server.page().encode() if known else b'{"error": {"message": "A valid API key is needed"}}'  # type: ignore[attr-defined]
        self.send_response(200 if known else 401)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture
def url() -> Iterator[str]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Page)
    server.page = Server().page  # type: ignore[attr-defined]
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def test_the_command(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["top", url, "--once", "--interval", "0.2", "--api-key", "right"]) == 0
    assert "prefix hits" in capsys.readouterr().out
    assert main(["top", url, "--once", "--api-key", "wrong"]) == 1
    assert "A valid API key is needed" in capsys.readouterr().err
    assert main(["top", "http://127.0.0.1:9", "--once"]) == 1
    assert "octavo serve" in capsys.readouterr().err
