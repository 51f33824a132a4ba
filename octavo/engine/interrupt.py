"""Ctrl-C between steps, never inside one: a step that is cut in half would leave the worker in an unknown state."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

Check = Callable[[], None]
"""Raises KeyboardInterrupt if Ctrl-C came since."""


@contextmanager
def deferred_interrupt() -> Iterator[Check]:
    """While inside, Ctrl-C waits for the next check; a second one is obeyed at once.

    Outside the main thread, or where the program has its own handler, nothing is changed.
    """
    asked = False

    def check() -> None:
        if asked:
            raise KeyboardInterrupt

    def note(signum: int, frame: FrameType | None) -> None:
        nonlocal asked
        del signum, frame
        check()
        asked = True

    ours = threading.current_thread() is threading.main_thread()
    if not ours or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield check
        return
    before = signal.signal(signal.SIGINT, note)
    try:
        yield check
    finally:
        signal.signal(signal.SIGINT, before)
