"""The terminal's client and commands against a small server of the standard library."""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from octavo.base.errors import ConfigError, EngineError, UserError
from octavo.bench.hardware import free_port
from octavo.cli import chat as chat_module
from octavo.cli.chat import ChatOptions, Session, talk
from octavo.cli.client import Answer, Client
from octavo.cli.main import main
from octavo.cli.own_server import port_in_use


class Handler(BaseHTTPRequestHandler):
    """Streams the words of `server.answer`; remembers what was asked."""

    def do_GET(self):
        if self.path.endswith("/v1/models"):
            self.reply(200, json.dumps({"data": [{"id": name} for name in self.server.names]}).encode())
        else:
            self.reply(200 if self.path == "/ready" else 404, b"{}")

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.asked.append((self.path, body, self.headers.get("Authorization")))
        if self.server.fail:
            self.reply(*self.server.fail)
            return
        self.send_response(200)
        self.end_headers()
        for word in self.server.answer:
            choice = {"delta": {"content": word}} if "chat" in self.path else {"text": word}
            self.event({"choices": [choice]})
        self.event({"choices": [{"delta": {}, "finish_reason": "stop"}]})
        self.event({"choices": [], "usage": {"completion_tokens": 3, "prompt_tokens": 7}})
        self.wfile.write(self.server.tail)

    def event(self, value):
        self.wfile.write(b"data: " + json.dumps(value).encode() + b"\n\n")

    def reply(self, status, body):
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


@pytest.fixture
def server():
    found = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    found.names, found.answer, found.asked, found.fail = ["tiny"], ["one ", "two ", "three"], [], None
    found.tail = b"data: [DONE]\n\n"
    found.url = f"http://127.0.0.1:{found.server_port}"
    thread = threading.Thread(target=found.serve_forever, daemon=True)
    thread.start()
    yield found
    found.shutdown()
    found.server_close()


class Memory:
    def __init__(self):
        self.texts, self.notes = [], []

    def answer(self, pieces):
        self.texts.append("".join(pieces))

    def note(self, text):
        self.notes.append(text)


def test_stream_gives_text_counts_and_times(server):
    answer = Answer()
    client = Client(server.url + "/v1/", "key")
    assert client.ready()
    assert client.models() == ["tiny"]
    assert list(client.stream("/v1/chat/completions", {"messages": []}, answer)) == ["one ", "two ", "three"]
    assert (answer.text, answer.tokens, answer.prompt_tokens, answer.finish_reason) == ("one two three", 3, 7, "stop")
    assert 0 < answer.ttft_s < 30
    path, body, key = server.asked[0]
    assert path == "/v1/chat/completions"
    assert body["stream"] is True
    assert key == "Bearer key"


def test_errors_carry_the_servers_words(server):
    client = Client(server.url)
    server.fail = (400, json.dumps({"error": {"message": "temperature is too hot"}}).encode())
    with pytest.raises(UserError, match=r"temperature is too hot \(HTTP 400\)"):
        list(client.stream("/v1/completions", {}, Answer()))
    server.fail = (502, b"<html>")
    with pytest.raises(UserError, match="HTTP 502"):
        list(client.stream("/v1/completions", {}, Answer()))
    server.fail, server.tail = None, b'data: {"error": {"message": "engine fell over"}}\n\n'
    with pytest.raises(UserError, match="engine fell over"):
        list(client.stream("/v1/completions", {}, Answer()))
    server.tail = b"data: {broken\n\n"
    with pytest.raises(EngineError, match="broke off"):
        list(client.stream("/v1/completions", {}, Answer()))


def test_nobody_there():
    client = Client(f"127.0.0.1:{free_port()}")
    assert not client.ready()
    with pytest.raises(EngineError, match="no server answers"):
        client.models()


@pytest.mark.parametrize(
    "url",
    [
        "ftp://x",
        "http://",
        "http://h:99999",
        "http://h:x",
        "http://h:0",
        "http://[::1",
        "not a url",
        "http://a b",
        "h/\n",
    ],
)
def test_bad_addresses(url):
    with pytest.raises(ConfigError, match="not a server's address"):
        Client(url)


def test_a_session_remembers_resets_and_takes_a_system_message(server):
    view = Memory()
    options = ChatOptions(system_prompt="be brief", temperature=0.5)
    session = Session(Client(server.url), "tiny", options, view)
    lines = iter(["hello", "again", "/system be rude", "now", "/reset", "/what", "last", "/exit", "never"])
    assert talk(session, view, lines) == 0
    sent = [body["messages"] for _, body, _ in server.asked]
    assert [message["role"] for message in sent[1]] == ["system", "user", "assistant", "user"]
    assert sent[1][2]["content"] == "one two three"
    assert sent[2] == [{"role": "system", "content": "be rude"}, {"role": "user", "content": "now"}]
    assert len(sent) == 4
    assert len(sent[3]) == 2
    assert server.asked[0][1]["temperature"] == 0.5
    assert "max_tokens" not in server.asked[0][1]
    assert sum("first token" in note and "3 tokens" in note for note in view.notes) == 4
    assert any("/reset forgets" in note for note in view.notes)


def test_ctrl_c_stops_the_answer_not_the_chat(server):
    class Impatient(Memory):
        def answer(self, pieces):
            next(iter(pieces))
            raise KeyboardInterrupt

    session = Session(Client(server.url), "tiny", ChatOptions(), Impatient())
    answer = session.ask("hello")
    assert answer.text == "one "
    assert answer.finish_reason == "abort"


def test_chat_over_a_pipe(server, monkeypatch, capsys):
    monkeypatch.setattr(chat_module.sys, "stdin", iter_lines(["hello\n", "\n", "again\n"]))
    assert main(["chat", "--url", server.url]) == 0
    out, err = capsys.readouterr()
    assert out == "one two three\none two three\n"
    assert err.count("first token") == 2
    assert len(server.asked[1][1]["messages"]) == 3


def test_chat_over_a_pipe_fails_loudly(server, monkeypatch, capsys):
    server.fail = (400, b'{"error": {"message": "no"}}')
    monkeypatch.setattr(chat_module.sys, "stdin", iter_lines(["hello\n"]))
    assert main(["chat", "--url", server.url]) == 1
    assert capsys.readouterr().err == "octavo: no (HTTP 400)\n"


def test_quick_and_complete(server, capsys):
    assert main(["chat", "--url", server.url, "--quick", "hi", "--no-stats"]) == 0
    assert capsys.readouterr() == ("one two three\n", "")
    assert main(["complete", "def f", "--url", server.url, "--echo", "--max-tokens", "9"]) == 0
    out, err = capsys.readouterr()
    assert out == "def fone two three\n"
    assert "3 tokens" in err
    assert server.asked[1][:2] == (
        "/v1/completions",
        {
            "model": "tiny",
            "prompt": "def f",
            "max_tokens": 9,
            "stream": True,
            "stream_options": {"include_usage": True},
        },
    )


def test_wrong_model_names_the_right_one(server, capsys):
    assert main(["chat", "--url", server.url, "--quick", "x", "large"]) == 2
    assert "serves tiny, not 'large'" in capsys.readouterr().err


def test_ports(server):
    assert port_in_use(server.server_port)
    assert not port_in_use(free_port())


def iter_lines(lines):
    class Lines(list):
        def isatty(self):
            return False

    return Lines(lines)
