"""`octavo complete PROMPT`: one completion, printed as it comes."""

import sys
from typing import Annotated

from octavo.base.config import EngineConfig, doc
from octavo.base.errors import ConfigError
from octavo.cli.client import Answer
from octavo.cli.command import Command
from octavo.cli.connect import TalkOptions, connection
from octavo.cli.render import PlainView

MAX_PROMPT_CHARS = 16 << 20


class CompleteOptions(TalkOptions, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One completion."""

    prompt: Annotated[str | None, doc("Text to continue. Unset: read from standard input.")] = None
    echo: Annotated[bool, doc("Print the prompt before what follows it.")] = False


def run(options: CompleteOptions, engine: EngineConfig) -> int:
    """Continue one prompt."""
    prompt = options.prompt if options.prompt is not None else sys.stdin.read(MAX_PROMPT_CHARS)
    if not prompt:
        raise ConfigError("nothing to complete: give a prompt as argument or on standard input")
    view = PlainView()
    with connection(options, engine) as (client, model):
        answer = Answer()
        body = {"model": model, "prompt": prompt, **options.sampling()}
        if options.echo:
            sys.stdout.write(prompt)
        view.answer(client.stream("/v1/completions", body, answer))
        if options.stats:
            view.note(answer.summary())
    return 0


COMMAND = Command(
    name="complete",
    summary="Continue a prompt: on a running server, or on one started for --model.",
    roots=(CompleteOptions, EngineConfig),
    run=run,
    positional="prompt",
    example="octavo complete 'def fibonacci(n):' --max-tokens 64",
)
