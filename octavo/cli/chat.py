"""`octavo chat`: a conversation in the terminal, or over lines of standard input."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

from octavo.base.config import EngineConfig, doc
from octavo.base.errors import OctavoError
from octavo.base.places import cache_folder
from octavo.cli.client import Answer, Client
from octavo.cli.command import Command
from octavo.cli.connect import TalkOptions, connection
from octavo.cli.main import one_line
from octavo.cli.render import View, make_view

HELP = "/reset forgets the conversation · /system TEXT sets the system message · /exit leaves"
MAX_HISTORY = 1000


class ChatOptions(TalkOptions, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A conversation."""

    system_prompt: Annotated[str | None, doc("System message put before the conversation.")] = None
    quick: Annotated[str | None, doc("Send this one message, print the answer and end.")] = None


class Session:
    """A conversation with one model: the messages so far and how to send the next one."""

    def __init__(self, client: Client, model: str, options: ChatOptions, view: View) -> None:
        self._client = client
        self._model = model
        self._options = options
        self._view = view
        self._system = options.system_prompt
        self._messages: list[dict[str, Any]] = []

    def ask(self, text: str) -> Answer:
        """Send a message, show the answer as it comes, remember both.

        Ctrl-C stops the answer, not the conversation. After an error the message is forgotten.
        """
        messages = [*self._messages, {"role": "user", "content": text}]
        system = [{"role": "system", "content": self._system}] if self._system else []
        body = {"model": self._model, "messages": [*system, *messages], **self._options.sampling()}
        answer = Answer()
        pieces = self._client.stream("/v1/chat/completions", body, answer)
        try:
            self._view.answer(pieces)
        except KeyboardInterrupt:
            pieces.close()  # type: ignore[attr-defined]
            answer.finish_reason = "abort"
        self._messages = [*messages, {"role": "assistant", "content": answer.text}]
        if self._options.stats:
            self._view.note(answer.summary())
        return answer

    def command(self, line: str) -> bool:
        """Obey a line that starts with a slash; False ends the conversation."""
        word, _, rest = line.partition(" ")
        if word in ("/exit", "/quit", "/bye"):
            return False
        if word == "/reset":
            self._messages = []
            self._view.note("forgotten")
        elif word == "/system":
            self._system = rest.strip() or None
            self._messages = []
            self._view.note("system message set" if self._system else "system message removed")
        else:
            self._view.note(HELP)
        return True


def talk(session: Session, view: View, lines: Iterator[str]) -> int:
    """Answer line after line. On a pipe the first error ends it; a person may try again."""
    code = 0
    for line in lines:
        if line.startswith("/"):
            if not session.command(line):
                break
            continue
        try:
            session.ask(line)
        except OctavoError as error:
            view.note(f"octavo: {one_line(error)}")
            if not sys.stdin.isatty():
                code = 1
                break
    return code


def typed_lines() -> Iterator[str]:
    """Lines that are not empty: with editing and history on a terminal, else from standard input."""
    if not sys.stdin.isatty():
        yield from (line.strip() for line in sys.stdin if line.strip())
        return
    history = _open_history()
    try:
        while True:
            line = input("\n› ").strip()
            if line:
                yield line
    except (EOFError, KeyboardInterrupt):
        print()
    finally:
        _close_history(history)


def run(options: ChatOptions, engine: EngineConfig) -> int:
    """Connect, then talk until the end of input."""
    view = make_view()
    with connection(options, engine) as (client, model):
        session = Session(client, model, options, view)
        if options.quick is not None:
            session.ask(options.quick)
            return 0
        if sys.stdin.isatty():
            view.note(f"{model} · {HELP}")
        return talk(session, view, typed_lines())


def _open_history() -> Path | None:
    try:
        import readline

        path = cache_folder() / "chat_history"
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists():
            readline.read_history_file(path)
        readline.set_history_length(MAX_HISTORY)
        return path
    except (ImportError, OSError):
        return None


def _close_history(path: Path | None) -> None:
    if path is None:
        return
    import readline

    try:
        path.touch(mode=0o600)
        readline.write_history_file(path)
    except OSError:
        return


COMMAND = Command(
    name="chat",
    summary="Talk to a model: on a running server, or on one started for MODEL.",
    roots=(ChatOptions, EngineConfig),
    run=run,
    positional="model",
    example="octavo chat --url http://127.0.0.1:8000",
)
