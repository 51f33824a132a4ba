"""The engine's process: ``python -m octavo.engine.proc``, started by engine/process.py and by nobody else.

It reads one `Launch` from standard input, which then stays open: its end means that the parent is gone.
"""

import gc
import logging
import os
import signal
import struct
import sys
import threading
import time
from collections.abc import Callable
from importlib import import_module
from typing import IO, Any, NoReturn

import msgspec
import zmq
from msgspec import Struct

from octavo.base import ipc
from octavo.base import log as logs
from octavo.base.config import EngineConfig
from octavo.base.errors import ConfigError, ModelFileError, OctavoError
from octavo.base.wire import Abort, Control, EngineInput, EngineRequest, Fatal, Shutdown, StepOutputs, Vocabulary
from octavo.engine.control import execute
from octavo.engine.core import Core
from octavo.engine.interpreter import take_turns
from octavo.engine.spare import AHEAD, FOR_CPU

log = logging.getLogger(__name__)

EXIT_OK = 0
EXIT_CONFIG = 2
EXIT_BROKEN = 3
MAX_LAUNCH_BYTES = 1 << 20
LAST_WORDS_S = 2.0  # how long a dying process waits for its last frame to leave
HEARTBEAT_S = 1.0  # an engine with work says something at least so often, that it waits if nothing else
FIRST_WAIT_S = 0.25  # after a start: whoever asks first is not to wait for what makes later steps cheaper
STILL_WAIT_S = 0.01  # pause when there is work but no step to take
MAX_MESSAGES_A_STEP = 1024
REAL_ASSEMBLY = "octavo.engine.assemble:assemble"


class Unwanted(Exception):
    """The process that was started ahead is not needed."""


class Launch(Struct, frozen=True, kw_only=True):
    """All that the process is told, through its standard input."""

    config: EngineConfig
    inbox: str = ""  # these four: of one epoch
    outbox: str = ""
    key: bytes = b""
    parent: int = 0
    log_level: str = "info"
    log_format: str = "text"
    assembly: str = REAL_ASSEMBLY  # "module:attribute"; tests put another in its place


def write_launch(launch: Launch) -> bytes:
    """The bytes that `read_launch` reads: a length, then msgpack."""
    body = msgspec.msgpack.encode(launch)
    return struct.pack(">I", len(body)) + body


def read_launch(stream: IO[bytes]) -> Launch:
    """Raises ConfigError on anything but a whole, well-formed launch, Unwanted on none at all."""
    head = stream.read(4)
    if not head and AHEAD in sys.argv[1:]:
        raise Unwanted
    size = struct.unpack(">I", head)[0] if len(head) == 4 else 0
    if not 0 < size <= MAX_LAUNCH_BYTES:
        raise ConfigError("this process is started by octavo itself, not by hand")
    try:
        return msgspec.msgpack.decode(stream.read(size), type=Launch)
    except msgspec.MsgspecError as error:
        raise ConfigError(f"the engine was handed a broken configuration: {error}") from None


class Loop:
    """Messages in, steps, messages out. Asleep on the socket while there is nothing to do."""

    def __init__(self, core: Core, receiver: ipc.Receiver[EngineInput], sender: ipc.Sender) -> None:
        self._core = core
        self._receiver = receiver
        self._sender = sender
        self._running = True
        self._said_at = 0.0

    def run(self) -> None:
        """Until Shutdown. Raises what the core raises."""
        wait: float | None = FIRST_WAIT_S
        while True:
            self._read(wait)
            if not self._running:
                return
            outputs = self._core.step()
            if outputs is not None:
                self._say(outputs)
                wait = 0.0
            elif self._core.has_work:
                wait = STILL_WAIT_S
                if time.monotonic() - self._said_at > HEARTBEAT_S:
                    self._say(StepOutputs(stats=self._core.stats))
            else:
                wait = self._idle()

    def _say(self, outputs: StepOutputs) -> None:
        self._sender.send(outputs)
        self._said_at = time.monotonic()

    def _idle(self) -> float | None:
        """Nothing to do: make later steps cheaper, one piece at a time, so that a request waits for one at most."""
        return 0.0 if self._core.prepare() else None

    def _read(self, wait: float | None) -> None:
        message = self._receiver.receive(wait)
        for _ in range(MAX_MESSAGES_A_STEP):
            if message is None:
                return
            self._handle(message)
            message = self._receiver.receive(0.0)

    def _handle(self, message: EngineInput) -> None:
        match message:
            case EngineRequest():
                self._core.add(message)
            case Abort():
                self._core.abort(message.ids)
            case Control():
                self._sender.send(execute(self._core, message))
            case Vocabulary():
                self._core.provide(message)
            case Shutdown():
                self._running = False


def serve(launch: Launch) -> int:
    """Build the engine, say Ready, run until told to stop. Returns the exit code."""
    context: zmq.Context[Any] = zmq.Context()
    sender = ipc.Sender(context, launch.outbox, launch.key)
    receiver: ipc.Receiver[EngineInput] = ipc.Receiver(context, launch.inbox, launch.key, EngineInput)
    try:
        engine = _load(launch.assembly)(launch.config)
        core: Core = engine.core
        # What start-up made lives as long as the process: the collector need not walk it on every full round.
        gc.collect()
        gc.freeze()
        gc.enable()
        sender.send(engine.ready)
        Loop(core, receiver, sender).run()
        core.shutdown()  # after a failure the kernel does it: a broken device might hold us up for ever
        return EXIT_OK
    except (ConfigError, ModelFileError) as error:
        sender.send(Fatal(logs.one_line(str(error))))
        return EXIT_CONFIG
    except Exception as error:
        log.exception("the engine stops")
        sender.send(Fatal(_one_line_of(error)))
        return EXIT_BROKEN
    finally:
        receiver.close()
        sender.close(LAST_WORDS_S)
        context.term()


def main() -> int:
    """The process from its first line to its exit code."""
    # Ctrl-C goes to all processes of a terminal, SIGTERM from systemd to all of a service; what they mean is for the
    # parent to say, who drains first. While it lives we ignore them; when it is gone, we are too (die_with_parent).
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    take_turns()
    gc.disable()  # of what a start makes nearly all stays, and looking for the rest takes a tenth of its time
    if AHEAD in sys.argv[1:]:
        end_with(os.getppid())
        import_module("octavo.engine.ahead").prepare(gpu=FOR_CPU not in sys.argv[1:])
        gc.freeze()
    try:
        launch = read_launch(sys.stdin.buffer)
    except Unwanted:
        return EXIT_OK
    except OctavoError as error:
        logs.tell(str(error), failed=True)
        return EXIT_CONFIG
    logs.set_up(launch.log_level, "json" if launch.log_format == "json" else "text")
    die_with_parent(launch.parent)
    return serve(launch)


def die_with_parent(parent: int) -> None:
    """End this process when its parent ends, however that ends and whatever this one is doing.

    The kernel's signal (Linux) works even if the interpreter hangs; the end of standard input works everywhere.
    """
    end_with(parent)
    threading.Thread(target=_leave_at_end_of_input, daemon=True, name="octavo-parent-watch").start()


def end_with(parent: int) -> None:
    """Have the kernel end this process with its parent, where it can (Linux)."""
    if sys.platform == "linux":
        import ctypes

        set_parent_death_signal = 1  # PR_SET_PDEATHSIG, linux/prctl.h
        ctypes.CDLL(None).prctl(set_parent_death_signal, signal.SIGKILL)
    if os.getppid() != parent:  # it went before we asked
        os._exit(EXIT_BROKEN)


def _leave_at_end_of_input() -> NoReturn:
    while os.read(0, 4096):
        pass
    os._exit(EXIT_BROKEN)


def _load(name: str) -> Callable[[EngineConfig], Any]:
    module, _, attribute = name.partition(":")
    found: Callable[[EngineConfig], Any] = getattr(import_module(module), attribute)
    return found


def _one_line_of(error: Exception) -> str:
    if isinstance(error, OctavoError):
        return logs.one_line(str(error))
    return logs.one_line(f"{type(error).__name__}: {error}", 500)


if __name__ == "__main__":
    code = main()
    logging.shutdown()
    sys.stderr.flush()
    # Taking a large process apart object by object takes seconds; the kernel frees it at once.
    os._exit(code)
