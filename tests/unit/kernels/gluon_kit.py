"""Kernels written in Gluon, gone through on the CPU: Gluon has no interpreter, and its kernels are plain Python.

Each function runs as it is written, over names that mean torch's operations: layouts are ignored, shared memory is a
tensor full of numbers that are none, bulk copies happen at once, barriers count, the parts of a warp-specialized kernel
are threads. Programs run one after the other. What is read or written outside of a tensor is an error, and so is a wait
for what never comes. `before_inputs` stands in for the kernel before: what it returns is called at the first wait of a
launch, and may fill inputs then.
"""

import threading
from collections.abc import Callable
from types import FunctionType, ModuleType, SimpleNamespace
from typing import Any

import torch
from triton.language import constexpr
from triton.runtime.jit import JITFunction

PATIENCE_S = 20
_LAUNCH = ("num_warps", "launch_pdl", "maxnreg")


class Block(torch.Tensor):
    """A tensor in registers; a scalar has no dimensions."""

    @property
    def type(self) -> Any:  # type: ignore[override]
        return SimpleNamespace(layout=None)

    def __iadd__(self, more: Any) -> "Block":
        return self + more  # names are values there, not places

    def __imul__(self, more: Any) -> "Block":
        return self * more


def block(value: Any, dtype: torch.dtype | None = None) -> Block:
    return torch.as_tensor(value, dtype=dtype).as_subclass(Block)


class Pointer:
    """Into the whole storage of a tensor."""

    def __init__(self, flat: torch.Tensor, at: Any) -> None:
        self.flat, self.at = flat, at
        self.dtype = SimpleNamespace(element_ty=flat.dtype)

    @classmethod
    def to(cls, tensor: torch.Tensor) -> "Pointer":
        size = tensor.untyped_storage().nbytes() // tensor.itemsize
        return cls(tensor.as_strided((size,), (1,), 0), block(tensor.storage_offset()))

    def __add__(self, more: Any) -> "Pointer":
        return Pointer(self.flat, self.at + more)


class Shared:
    """Shared memory, or a view of it."""

    def __init__(self, memory: torch.Tensor, layout: Any) -> None:
        self.memory, self.layout, self.dtype, self.shape = memory, layout, memory.dtype, memory.shape

    def index(self, at: Any) -> "Shared":
        assert 0 <= int(at) < self.memory.shape[0]
        return Shared(self.memory[int(at)], self.layout)

    def slice(self, start: int, length: int) -> "Shared":
        return Shared(self.memory[start : start + length], self.layout)

    def reshape(self, shape: list[int]) -> "Shared":
        return Shared(self.memory.view(shape), self.layout)

    def permute(self, order: tuple[int, ...]) -> "Shared":
        return Shared(self.memory.permute(order), self.layout)

    def load(self, _: Any) -> Block:
        return block(self.memory.clone())

    def store(self, value: torch.Tensor) -> None:
        self.memory.copy_(value)


class _Cut(Shared):
    """Shared memory in groups of rows and columns: bulk copies lay a group of columns down whole before the next."""

    def __init__(self, memory: torch.Tensor, shape: list[int], layout: Any) -> None:
        super().__init__(memory, layout)
        self.shape = torch.Size(shape)

    def index(self, at: Any) -> Shared:
        (_, rows, columns), (_, height, width) = self.memory.shape, self.shape
        behind, down = divmod(int(at), rows // height)
        stage, across = divmod(behind, columns // width)
        down, across = down * height, across * width
        return Shared(self.memory[stage, down : down + height, across : across + width], self.layout)


class _Barriers:
    """mbarrier objects, by the address of their shared memory (PTX ISA, "mbarrier")."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.states: dict[int, SimpleNamespace] = {}

    def init(self, bar: Shared, count: int) -> None:
        self.states[bar.memory.data_ptr()] = SimpleNamespace(count=count, pending=count, bytes=0, phase=0)

    def expect(self, bar: Shared, nbytes: int, pred: Any = True) -> None:
        if pred:
            self.change(bar, 1, nbytes)

    def arrive(self, bar: Shared, *, count: int = 1) -> None:
        self.change(bar, count, 0)

    def change(self, bar: Shared, arrivals: int, nbytes: int) -> None:
        with self.changed:
            state = self.states[bar.memory.data_ptr()]
            state.pending -= arrivals
            state.bytes += nbytes
            assert state.pending >= 0, "more arrivals than a phase has"
            if state.pending == 0 and state.bytes == 0:
                state.pending, state.phase = state.count, state.phase ^ 1
            self.changed.notify_all()

    def wait(self, bar: Shared, phase: Any) -> None:
        with self.changed:
            state = self.states[bar.memory.data_ptr()]
            assert self.changed.wait_for(lambda: state.phase != int(phase), PATIENCE_S), "waits for what never comes"

    MBarrierLayout = staticmethod(lambda *_: None)


class _Launcher:
    def __init__(self, launch: Callable[[tuple[int, ...]], Callable[..., None]]) -> None:
        self._launch = launch

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        return self._launch(grid)


class Emulator:
    """Runs kernels for a grid of programs, in `order` of their numbers."""

    def __init__(self, order: Callable[[int], list[int]] = lambda n: list(range(n))) -> None:
        self.order = order
        self.before_inputs: Callable[[], None] | None = None
        self._known: dict[int, Any] = {}
        self._barriers = _Barriers()
        self._program, self._programs = 0, 1
        self._waited = False
        self._gl = self._names()

    def take_over(self, module: ModuleType, name: str) -> None:
        """A module's kernel is launched here from now on."""
        kernel = getattr(module, name)
        setattr(module, name, _Launcher(lambda grid: self._launch(kernel, grid)))

    def _launch(self, kernel: JITFunction[Any], grid: tuple[int, ...]) -> Callable[..., None]:
        def run(*args: Any, **options: Any) -> None:
            options = {name: value for name, value in options.items() if name not in _LAUNCH}
            given = [self._argument(each) for each in args]
            self._waited, self._programs = False, grid[0]
            for program in self.order(grid[0]):
                self._program = program
                self._plain(kernel)(*given, **options)
            assert self._waited

        return run

    def _argument(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return Pointer.to(value)
        if hasattr(value, "block_shape"):
            base = value.base.as_strided(value.shape, value.strides)
            return SimpleNamespace(base=base, layout=value.layout, dtype=base.dtype)
        return block(value) if isinstance(value, int) and not isinstance(value, bool) else value

    def _plain(self, kernel: JITFunction[Any]) -> Callable[..., Any]:
        """The function that was decorated, over this emulator's names."""
        if id(kernel) not in self._known:
            function = kernel.fn
            names = {name: self._meaning(name, value) for name, value in function.__globals__.items()}
            self._known[id(kernel)] = FunctionType(function.__code__, names, function.__name__, function.__defaults__)
        return self._known[id(kernel)]

    def _meaning(self, name: str, value: Any) -> Any:
        if name in ("gl", "tl"):
            return self._gl
        special = {
            "mbarrier": self._barriers,
            "bring": self._bring,
            "meet": lambda: None,
            "recast": lambda memory, _, shape, layout: _Cut(memory.memory, shape, layout),
            "fence_async_shared": lambda: None,
            "let_next_start": lambda: None,
            "wait_for_inputs": self._wait_for_inputs,
            "warpgroup_mma": self._multiply,
            "warpgroup_mma_init": lambda value: value,
            "warpgroup_mma_wait": lambda _, deps: deps[0] if len(deps) == 1 else tuple(deps),
        }
        if name in special:
            return special[name]
        if isinstance(value, constexpr):
            return value.value
        if isinstance(value, JITFunction):
            return lambda *args, **more: _blocks(self._plain(value)(*args, **more))
        return value

    def _wait_for_inputs(self) -> None:
        with self._barriers.changed:
            if not self._waited and self.before_inputs is not None:
                self.before_inputs()
            self._waited = True

    def _bring(self, source: Any, place: list[Any], bar: Shared, into: Shared, pred: Any = True) -> None:
        """A tile, zeros where the matrix has nothing."""
        if not pred:
            return
        spans = [(int(at), size) for at, size in zip(place, into.memory.shape, strict=True)]
        into.memory.zero_()
        inside = [(max(0, at), min(at + size, most)) for (at, size), most in zip(spans, source.base.shape, strict=True)]
        if all(low < high for low, high in inside):
            to = tuple(slice(low - at, high - at) for (low, high), (at, _) in zip(inside, spans))
            into.memory[to] = source.base[tuple(slice(low, high) for low, high in inside)]
        self._barriers.change(bar, 0, -into.memory.numel() * into.memory.itemsize)

    @staticmethod
    def _multiply(a: Shared | Block, b: Shared, acc: torch.Tensor, *, is_async: bool) -> Block:
        del is_async
        tall = a.memory if isinstance(a, Shared) else a
        return block(acc + tall.float() @ b.memory.float())

    def _specialize(self, parts: list[tuple[Callable[..., None], tuple[Any, ...]]], *_: Any) -> None:
        errors: list[BaseException] = []

        def run(part: Callable[..., None], args: tuple[Any, ...]) -> None:
            try:
                part(*args)
            except BaseException as error:
                errors.append(error)

        threads = [threading.Thread(target=run, args=part) for part in parts]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if errors:
            raise errors[0]

    def _names(self) -> Any:
        def allocate(dtype: torch.dtype, shape: list[int], layout: Any) -> Shared:
            whole = torch.zeros if not dtype.is_floating_point else lambda *a, **k: torch.full(*a, float("nan"), **k)
            return Shared(whole(shape, dtype=dtype), layout)

        def pair(function: Callable[..., torch.Tensor]) -> Callable[..., Block]:
            return lambda a, b: block(function(torch.as_tensor(a), torch.as_tensor(b)))

        def along(function: Callable[..., torch.Tensor]) -> Callable[..., Block]:
            return lambda value, axis: block(function(value, axis))

        def one(function: Callable[..., torch.Tensor]) -> Callable[..., Block]:
            return lambda value: block(function(torch.as_tensor(value)))

        dtypes = {name: getattr(torch, name) for name in ("int32", "int64", "float32", "bfloat16", "float16")}
        return SimpleNamespace(
            **dtypes,
            constexpr=lambda value: value,
            allocate_shared_memory=allocate,
            arange=lambda low, high, **_: block(torch.arange(low, high)),
            atomic_add=_atomic_add,
            cast=lambda value, dtype: block(value).to(dtype),
            cdiv=lambda a, b: -(-a // b),
            convert_layout=lambda value, _: value,
            erf=one(torch.erf),
            exp=one(torch.exp),
            exp2=one(torch.exp2),
            full=lambda shape, value, dtype, **_: block(torch.full(shape, value, dtype=dtype)),
            load=_load,
            log2=one(torch.log2),
            max=along(torch.amax),
            maximum=pair(torch.maximum),
            minimum=pair(torch.minimum),
            num_programs=lambda _: block(self._programs),
            permute=lambda value, order: block(value.permute(order)),
            program_id=lambda axis: block(self._program if axis == 0 else 0),
            reshape=lambda value, shape: block(value.reshape(shape)),
            rsqrt=one(torch.rsqrt),
            sigmoid=one(torch.sigmoid),
            split=lambda value: tuple(block(each) for each in value.unbind(-1)),
            static_range=range,
            store=_store,
            sum=along(torch.sum),
            to_tensor=block,
            warp_specialize=self._specialize,
            where=lambda cond, a, b: block(torch.where(torch.as_tensor(cond), torch.as_tensor(a), torch.as_tensor(b))),
            zeros=lambda shape, dtype, **_: block(torch.zeros(shape, dtype=dtype)),
            **dict.fromkeys(
                (
                    "BlockedLayout",
                    "DotOperandLayout",
                    "NVMMADistributedLayout",
                    "NVMMASharedLayout",
                    "SliceLayout",
                    "SwizzledSharedLayout",
                ),
                lambda *_, **__: None,
            ),
        )


def _blocks(value: Any) -> Any:
    """Numbers that a function made of plain ones."""
    return block(value) if type(value) is int else value


def _places(pointer: Pointer, mask: Any) -> tuple[torch.Tensor, torch.Tensor]:
    at = torch.as_tensor(pointer.at)
    live = torch.ones_like(at, dtype=torch.bool) if mask is None else torch.as_tensor(mask)
    at, live = torch.broadcast_tensors(at, live)
    wanted = at[live]
    assert wanted.numel() == 0 or (int(wanted.min()) >= 0 and int(wanted.max()) < pointer.flat.numel()), "out of bounds"
    return at, live


def _load(pointer: Pointer, mask: Any = None, other: float = 0, cache_modifier: str = "") -> Block:
    del cache_modifier
    at, live = _places(pointer, mask)
    found = torch.full(at.shape, other, dtype=pointer.flat.dtype)
    found[live] = pointer.flat[at[live].as_subclass(torch.Tensor)]
    return block(found)


def _store(pointer: Pointer, value: Any, mask: Any = None) -> None:
    at, live = _places(pointer, mask)
    values = torch.as_tensor(value).to(pointer.flat.dtype).expand(at.shape)
    pointer.flat[at[live].as_subclass(torch.Tensor)] = values[live].as_subclass(torch.Tensor)


def _atomic_add(pointer: Pointer, value: int, sem: str) -> Block:
    del sem
    before = _load(pointer).clone()
    _store(pointer, before + value)
    return block(before)
