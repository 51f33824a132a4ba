"""Aside: what another thread does meanwhile. For native code that gives the interpreter's lock up."""

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Aside(Generic[T]):
    """One thing at a time, for one owner: `begin`, then `result`. Some 30 us for both.

    `begin` comes back when the work has the interpreter's lock or has given it up again: otherwise the work would have
    to wait until its owner rests.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._thread: threading.Thread | None = None
        self._given, self._begun, self._done = (_held() for _ in range(3))
        self._work: Callable[[], T] | None = None
        self._result: T | None = None
        self._error: BaseException | None = None

    def begin(self, work: Callable[[], T]) -> None:
        """Have it done. The last work's result must have been taken."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._serve, name=self._name, daemon=True)
            self._thread.start()
        self._work = work
        self._given.release()
        self._begun.acquire()

    def result(self) -> T:
        """Wait for what was begun. Raises what it raised."""
        self._done.acquire()
        result, error = self._result, self._error
        self._result = self._error = None
        if error is not None:
            raise error
        return result  # type: ignore[return-value]  # it is the work's, which may be None

    def close(self) -> None:
        """End the thread, nothing being under way."""
        if self._thread is not None:
            self._work = None
            self._given.release()
            self._thread.join()
            self._thread = None

    def _serve(self) -> None:
        while True:
            self._given.acquire()
            work, self._work = self._work, None
            if work is None:
                return
            self._begun.release()
            try:
                self._result = work()
            except BaseException as error:  # it is the owner's
                self._error = error
            del work  # it may hold what is to be freed with its owner
            self._done.release()


def _held() -> threading.Lock:
    lock = threading.Lock()
    lock.acquire()
    return lock
