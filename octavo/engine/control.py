"""Commands that an operator or the API process may give the engine: a table of names with typed arguments."""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

from octavo.base.errors import EngineDead, OctavoError, UnknownName
from octavo.base.wire import MEMORY_TAGS, Control, ControlReply
from octavo.engine.core import Core

log = logging.getLogger(__name__)

Value = str | int | float | bool | dict[str, str | int | float | bool | None] | None


class NoArguments(Struct, frozen=True, forbid_unknown_fields=True):
    """For commands that take nothing."""


class SleepArguments(Struct, frozen=True, forbid_unknown_fields=True):
    """What goes, and what becomes of the requests that run."""

    level: Annotated[int, Meta(ge=1, le=2)] = 1
    mode: Literal["keep", "abort"] = "keep"


class WakeArguments(Struct, frozen=True, forbid_unknown_fields=True):
    """What comes back: names of MEMORY_TAGS with commas between; empty: all."""

    tags: str = ""


@dataclass(frozen=True, slots=True)
class Command:
    """What to call, and the struct that its arguments must fit. A call that gives nothing is answered True."""

    run: Callable[[Core, Any], Value]
    arguments: type[Struct] = NoArguments


def _stats(core: Core, _: NoArguments) -> Value:
    now = msgspec.structs.asdict(core.stats)
    figures = now.pop("figures")
    return {**now, **figures, "failed_steps": core.failures}


def _sleep(core: Core, arguments: SleepArguments) -> Value:
    return {**core.rest.sleep(core, arguments.level, abort=arguments.mode == "abort")}


def _wake_up(core: Core, arguments: WakeArguments) -> Value:
    return core.rest.wake(arguments.tags.split(",") if arguments.tags else MEMORY_TAGS)


COMMANDS: dict[str, Command] = {
    # The number of steps so far: two pings with work between them tell whether the engine moves.
    "ping": Command(lambda core, _: core.stats.steps),
    # All gauges and counters by name.
    "stats": Command(_stats),
    # Forget all cached prefixes; running requests keep what they share.
    "reset_prefix_cache": Command(lambda core, _: core.scheduler.forget_prefixes()),
    # Let nobody start any more, while those that run go on: the first half of falling asleep. And take that back.
    "pause": Command(lambda core, _: core.rest.pause()),
    "resume": Command(lambda core, _: core.rest.resume()),
    # Give device memory back: level, bytes and seconds.
    "sleep": Command(_sleep, SleepArguments),
    # Bring device memory back; whether the engine is awake.
    "wake_up": Command(_wake_up, WakeArguments),
    # Whether any device memory is given back.
    "is_sleeping": Command(lambda core, _: core.rest.level > 0),
}


def execute(core: Core, control: Control) -> ControlReply:
    """Run a command. What goes wrong is told in the reply and stops nothing, but for EngineDead, which is raised."""
    try:
        command = COMMANDS.get(control.command)
        if command is None:
            raise UnknownName("command", control.command, COMMANDS)
        arguments = msgspec.convert(control.args, command.arguments)
        value = command.run(core, arguments)
        return ControlReply(control.id, True if value is None else value)
    except EngineDead:
        raise
    except (OctavoError, msgspec.ValidationError) as error:
        return ControlReply(control.id, error=str(error))
    except Exception as error:
        log.exception("command %s failed", control.command)
        return ControlReply(control.id, error=f"the command failed: {type(error).__name__}")
