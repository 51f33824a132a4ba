"""The demo: bring a model, serve it, ask it something over HTTP, show the answer and how fast it came.

With a terminal it then stays as a chat. Run by `make demo`.
"""

import argparse
import sys
import time

from octavo.base.config import EngineConfig, ModelConfig
from octavo.base.errors import OctavoError
from octavo.cli.chat import ChatOptions, Session, talk, typed_lines
from octavo.cli.main import one_line
from octavo.cli.own_server import own_server, port_in_use
from octavo.cli.render import make_view
from octavo.weights.demo_models import find_demo_model
from octavo.weights.fetch import fetch_demo_model

QUESTION = "Write a short Python function that says whether a word is a palindrome."


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True)
    parser.add_argument("--port", type=int, default=8000)
    args = parser.parse_args()
    if not 1 <= args.port <= 65_535:
        return fail(f"{args.port} is not a port; try: make demo PORT=8001")
    if port_in_use(args.port):
        return fail(f"port {args.port} is in use; try another: make demo PORT={args.port % 65_535 + 1}")
    try:
        return demo(args.model, args.port)
    except OctavoError as error:
        return fail(one_line(error))
    except KeyboardInterrupt:
        print()
        return 130


def demo(model: str, port: int) -> int:
    """Serve, ask, and talk on if a person is there."""
    view = make_view()
    bring(model)
    say(f"Starting: octavo serve {model} --port {port}")
    with own_server(EngineConfig(model=ModelConfig(model=model)), port) as client:
        name = client.models()[0]
        session = Session(client, name, ChatOptions(temperature=0.0, max_tokens=256), view)
        print(f"\n› {QUESTION}\n", flush=True)
        session.ask(QUESTION)
        if not sys.stdin.isatty():
            return 0
        say("\nYour turn; /exit or Ctrl-D leaves and stops the server.")
        return talk(Session(client, name, ChatOptions(), view), view, typed_lines())


def bring(name: str) -> None:
    """Fetch a known demo model, with a progress bar on a terminal; anything else is for the server to find."""
    model = find_demo_model(name)
    if model is None:
        return
    say(f"Model: {model.name}, {model.size / 1e6:.0f} MB, licence {model.licence}")
    begin = time.perf_counter()
    path = fetch_demo_model(model)
    seconds = time.perf_counter() - begin
    say(f"Model file: {path}" + (f", brought in {seconds:.0f} s" if seconds > 1 else ""))


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def fail(text: str) -> int:
    say(f"demo: {text}")
    return 1


if __name__ == "__main__":
    raise SystemExit(main())
