"""Aside: what another thread does meanwhile. For native code that gives the interpreter's lock up."""

import threading
import weakref
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Aside(Generic[T]):
    """One thing at a time, for one owner: `begin`, then `result`. Some 30 us for both.

    `begin` comes back when the work has the interpreter's lock or has given it up again: otherwise the work would have
    to wait until its owner rests.
    """

    def __init__(self, name: str) -> None:
        self._desk: _Desk[T] = _Desk()
        thread = threading.Thread(target=self._desk.serve, name=name, daemon=True)
        thread.start()
        # At the interpreter's end too: native code under way may call back into it.
        self.close = weakref.finalize(self, self._desk.close, thread)
        """Wait for what is under way and end the thread. May be called again."""

    def begin(self, work: Callable[[], T]) -> None:
        """Have it done. The last work's result must have been taken."""
        self._desk.work = work
        self._desk.given.release()
        self._desk.begun.acquire()

    def result(self) -> T:
        """Wait for what was begun. Raises what it raised."""
        desk = self._desk
        desk.done.acquire()
        result, error = desk.result, desk.error
        desk.result = desk.error = None
        if error is not None:
            raise error
        return result  # type: ignore[return-value]  # it is the work's, which may be None


class _Desk(Generic[T]):
    """What the two threads share."""

    def __init__(self) -> None:
        self.given, self.begun, self.done = (_held() for _ in range(3))
        self.work: Callable[[], T] | None = None
        self.result: T | None = None
        self.error: BaseException | None = None

    def serve(self) -> None:
        while True:
            self.given.acquire()
            work, self.work = self.work, None
            if work is None:
                return
            self.begun.release()
            try:
                self.result = work()
            except BaseException as error:  # it is the owner's
                self.error = error
            del work  # it may hold what is to be freed with its owner
            self.done.release()

    def close(self, thread: threading.Thread) -> None:
        self.work = None
        self.given.release()
        thread.join()


def _held() -> threading.Lock:
    lock = threading.Lock()  # taken by one thread, released by the other: cheaper than any signal
    lock.acquire()
    return lock
