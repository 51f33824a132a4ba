"""Commands that an operator or the API process may give the engine: a table of names with typed arguments."""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

from octavo.base.errors import OctavoError, UnknownName
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
    """What to call, and the struct that its arguments must fit."""

    run: Callable[[Core, Any], Value]
    arguments: type[Struct] = NoArguments


def ping(core: Core, arguments: NoArguments) -> Value:
    """The number of steps so far: two pings with work between them tell whether the engine moves."""
    del arguments
    return core.stats.steps


def stats(core: Core, arguments: NoArguments) -> Value:
    """All gauges and counters by name."""
    del arguments
    now = msgspec.structs.asdict(core.stats)
    figures = now.pop("figures")
    return {**now, **figures, "failed_steps": core.failures}


def reset_prefix_cache(core: Core, arguments: NoArguments) -> Value:
    """Forget all cached prefixes; running requests keep what they share."""
    del arguments
    core.scheduler.forget_prefixes()
    return True


def pause(core: Core, arguments: NoArguments) -> Value:
    """Let nobody start any more; those that run go on. The first half of falling asleep."""
    del arguments
    core.rest.pause()
    return True


def resume(core: Core, arguments: NoArguments) -> Value:
    """Take a pause back."""
    del arguments
    core.rest.resume()
    return True


def sleep(core: Core, arguments: SleepArguments) -> Value:
    """Give device memory back: level, bytes and seconds."""
    return {**core.rest.sleep(core, arguments.level, abort=arguments.mode == "abort")}


def wake_up(core: Core, arguments: WakeArguments) -> Value:
    """Bring device memory back; whether the engine is awake."""
    return core.rest.wake(arguments.tags.split(",") if arguments.tags else MEMORY_TAGS)


def is_sleeping(core: Core, arguments: NoArguments) -> Value:
    """Whether any device memory is given back."""
    del arguments
    return core.rest.level > 0


COMMANDS: dict[str, Command] = {
    "ping": Command(ping),
    "stats": Command(stats),
    "reset_prefix_cache": Command(reset_prefix_cache),
    "pause": Command(pause),
    "resume": Command(resume),
    "sleep": Command(sleep, SleepArguments),
    "wake_up": Command(wake_up, WakeArguments),
    "is_sleeping": Command(is_sleeping),
}


def execute(core: Core, control: Control) -> ControlReply:
    """Run a command. What goes wrong is told in the reply and stops nothing."""
    try:
        command = COMMANDS.get(control.command)
        if command is None:
            raise UnknownName("command", control.command, COMMANDS)
        arguments = msgspec.convert(control.args, command.arguments)
        return ControlReply(control.id, command.run(core, arguments))
    except (OctavoError, msgspec.ValidationError) as error:
        return ControlReply(control.id, error=str(error))
    except Exception as error:
        log.exception("command %s failed", control.command)
        return ControlReply(control.id, error=f"the command failed: {type(error).__name__}")
