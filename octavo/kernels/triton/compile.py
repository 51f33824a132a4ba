"""Kernels compiled side by side before they are launched.

Triton compiles a kernel at its first launch, seconds each, one after another. Its passes and ptxas hold no
interpreter lock, so threads make use of all cores. What is to be compiled is found by running the work itself on
tensors without memory (torch's meta device): a launch under `note` is only noted.

What does hold the lock is the walk through a kernel's source: one thread at a time does that, so that the first kernels
are soon with the passes, and whoever starts the engine has one thread beside it and not fifteen.
"""

import os
import sys
import threading
from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from contextvars import ContextVar, copy_context
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any, TypeVar

from triton import AsyncCompileMode, FutureKernel, knobs
from triton.compiler import ASTSource
from triton.runtime import driver
from triton.runtime.jit import JITFunction

T = TypeVar("T")

_OURS = __name__.rpartition(".")[0] + "."
_NICE = 10  # behind the thread that serves
_LARGE = 5000  # characters of source, of kernels that take from half a second to two: attention's, and `narrow`

_noting: ContextVar[bool] = ContextVar("octavo_noting", default=False)
_one = threading.Lock()  # kernels are shared by all engines of a process
_walking = threading.Lock()  # held by the thread that goes through a kernel's source
_stubs: defaultdict[tuple[str, ...], threading.Lock] = defaultdict(threading.Lock)  # by the kinds of their arguments


class Compiler:
    """Compiles what `note` saw launched, large kernels first, the others in the order seen. A later launch waits for
    its own kernel only."""

    def __init__(self, threads: int) -> None:
        self._pool = ThreadPoolExecutor(threads, "octavo-compile", initializer=_step_back)
        self._mode = AsyncCompileMode(self)  # of an Executor it uses `submit`
        self._new: list[tuple[int, Any]] = []  # what the launch under way must compile
        self._launching: JITFunction[Any] | None = None
        self._held: list[_Job] = []  # until all of a piece of work is noted
        self._noted: list[tuple[dict[Any, Any], Any, FutureKernel]] = []
        self._kernels = _kernels()

    def submit(self, compile_one: Callable[[], Any]) -> "Future[Any]":
        """Called by Triton for each kernel that is neither compiled nor under way."""
        self._held.append(_Job(compile_one, _size(self._launching) if self._launching else 0))
        return self._held[-1].future

    def note(self, work: Callable[[], T]) -> T:
        """Run `work`, whose launches of our kernels by this thread are not started; then begin to compile."""
        with _one:
            others = knobs.runtime.jit_cache_hook
            for kernel in self._kernels:
                kernel.run = partial(self._launch, kernel)
            knobs.runtime.jit_cache_hook = self._about_to_compile
            try:
                return copy_context().run(self._note, work)
            finally:
                knobs.runtime.jit_cache_hook = others
                for kernel in self._kernels:
                    del kernel.run
                self._begin()

    def _note(self, work: Callable[[], T]) -> T:
        # Never left: leaving would wait for all kernels, and the context ends with this call.
        self._mode.__enter__()
        _noting.set(True)
        return work()

    def _begin(self) -> None:
        held, self._held = self._held, []
        for job in sorted(held, key=lambda job: job.size < _LARGE):
            try:
                self._pool.submit(job.run)
            except RuntimeError:  # closed meanwhile
                self.close()
                return

    def _launch(self, kernel: "JITFunction[Any]", *args: Any, grid: Any, warmup: bool, **options: Any) -> Any:
        if not _noting.get():  # another thread's
            return JITFunction.run(kernel, *args, grid=grid, warmup=warmup, **options)
        self._launching = kernel
        _ = kernel.device_caches[driver.active.get_current_device()]  # sets what the next lines change
        source = kernel.ASTSource
        kernel.ASTSource = _stubbed(source)
        try:
            made = JITFunction.run(kernel, *args, grid=grid, warmup=True, **options)
        finally:
            kernel.ASTSource = source
        if self._new:
            # Where the kernel will be looked for, so that whoever launches it finds that it is under way.
            device, key = self._new.pop()
            kept = kernel.device_caches[device][0]
            kept.setdefault(key, made)
            self._noted.append((kept, key, made))
        return made

    def _about_to_compile(self, *, key: Any, compile: dict[str, Any], **_: Any) -> None:
        if _noting.get():
            self._new.append((compile["device"], key))

    def wait(self) -> None:
        """Until all is compiled. Raises what a compilation raised."""
        for _, _, kernel in self._noted:
            kernel.result()

    @property
    def count(self) -> int:
        """Kernels noted so far."""
        return len(self._noted)

    def close(self) -> None:
        """Begin no further kernel; those not begun are forgotten."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        for kept, key, kernel in self._noted:
            if kernel.future.cancel():
                kept.pop(key, None)


@dataclass(frozen=True, slots=True)
class _Job:
    compile_one: Callable[[], Any]
    size: int
    future: "Future[Any]" = field(default_factory=Future)

    def run(self) -> None:
        if self.future.set_running_or_notify_cancel():
            try:
                self.future.set_result(_made(self.compile_one))
            except BaseException as error:
                self.future.set_exception(error)


def _made(compile_one: Callable[[], Any]) -> Any:
    kernel = compile_one()
    if isinstance(kernel.src, _Stubbed):
        kernel.src.join()
    # The stub that launches it is C; it, too, is kept on disk by what it looks like. Trouble shows again at the launch.
    with suppress(Exception):
        driver.active.launcher_cls(kernel.src, kernel.metadata)
    return kernel


@cache
def _stubbed(source: type[ASTSource]) -> type[ASTSource]:
    """That kind of source, Triton's or Gluon's, with its stub."""
    return type("Source", (_Stubbed, source), {})


class _Stubbed:
    """A kernel to be compiled; if nobody has kept it, the C compiler works on its stub beside."""

    signature: dict[Any, Any]
    _stub: threading.Thread | None = None

    def make_ir(self, *args: Any) -> Any:
        # The stub of a kernel that reads by bulk copies depends on how its tiles came to lie in shared memory.
        if not any(str(kind).startswith("tensordesc") for kind in self.signature.values()):
            self._stub = threading.Thread(target=self._compile_stub, daemon=True, name="octavo-stub")
            self._stub.start()
        with _walking:
            return super().make_ir(*args)  # type: ignore[misc]

    def join(self) -> None:
        if self._stub is not None:
            self._stub.join()
            self._stub = None

    def _compile_stub(self) -> None:
        # Kernels whose arguments are of the same kinds have the same stub: the first has it compiled, others find it.
        kinds = tuple("*" if str(kind).startswith("*") else str(kind) for kind in self.signature.values())
        with suppress(Exception), _stubs[kinds]:
            driver.active.launcher_cls(self, _Unknown())


class _Unknown:
    """What a kernel turned out to be, before it did: the stub's text does not depend on it."""

    def __getattr__(self, name: str) -> None:
        return None


def _size(kernel: "JITFunction[Any]") -> int:
    """Characters of its source with all that it calls: what takes long to compile is long."""
    found, new = {id(kernel): kernel}, [kernel]
    while new:
        plain = new.pop().fn
        for name in plain.__code__.co_names:
            other = plain.__globals__.get(name)
            if isinstance(other, JITFunction) and id(other) not in found:
                found[id(other)] = other
                new.append(other)
    return sum(len(each.src) for each in found.values())


def _kernels() -> "list[JITFunction[Any]]":
    modules = [module for name, module in list(sys.modules.items()) if name.startswith(_OURS)]
    found = [each for module in modules for each in vars(module).values() if isinstance(each, JITFunction)]
    return list({id(each): each for each in found}.values())


def _step_back() -> None:
    with suppress(AttributeError, OSError):  # not Linux, where threads have their own niceness
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICE)
