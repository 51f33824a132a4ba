"""The arena: bookkeeping over a driver that only notes, real memory on a CPU, and the calls to CUDA's bindings."""

import enum
import itertools
from types import SimpleNamespace

import numpy as np
import psutil
import pytest
import torch

from octavo.base.errors import ConfigError
from octavo.platform import device_memory, pinned
from octavo.platform.arena import GROW, KV_CACHE, TAGS, WEIGHTS, Arena, NoArena
from octavo.platform.cpu import CpuPlatform
from octavo.platform.cuda import CudaPlatform
from octavo.platform.device_memory import DeviceBacking
from octavo.platform.host_memory import HostBacking, missing

MIB = 1 << 20
PAGE = 2 * MIB
LIMIT = 1024 * MIB
linux = pytest.mark.skipif(bool(missing()), reason=missing())


class Result(enum.IntEnum):
    CUDA_SUCCESS = 0
    CUDA_ERROR_INVALID_VALUE = 1
    CUDA_ERROR_OUT_OF_MEMORY = 2


class Driver:
    """CUDA's virtual memory as its documentation has it: what may not be done is an error, what is held is counted."""

    CUresult = Result
    CUmemAllocationType = SimpleNamespace(CU_MEM_ALLOCATION_TYPE_PINNED=1)
    CUmemLocationType = SimpleNamespace(CU_MEM_LOCATION_TYPE_DEVICE=1)
    CUmemAccess_flags = SimpleNamespace(CU_MEM_ACCESS_FLAGS_PROT_READWRITE=3)
    CUmemAllocationGranularity_flags = SimpleNamespace(CU_MEM_ALLOC_GRANULARITY_RECOMMENDED=1)

    def __init__(self, capacity=4096 * MIB):
        self.capacity = capacity
        self.handles = {}  # handle -> size, released ones gone
        self.mapped = {}  # address -> [size, accessible]
        self.reserved = {}
        self.next = 1 << 40
        self.fail = None

    def CUmemAllocationProp(self):
        return SimpleNamespace(location=SimpleNamespace())

    def CUmemAccessDesc(self):
        return SimpleNamespace(location=SimpleNamespace())

    @property
    def held(self):
        return sum(size for size, _ in self.mapped.values()) + sum(self.handles.values())

    def cuMemGetAllocationGranularity(self, properties, option):
        assert properties.type == 1
        assert properties.location.type == 1
        assert option == 1
        return Result.CUDA_SUCCESS, PAGE

    def cuMemAddressReserve(self, size, alignment, address, flags):
        assert size % PAGE == 0
        assert (alignment, address, flags) == (0, 0, 0)
        self.next += size + PAGE
        self.reserved[self.next - size] = size
        return Result.CUDA_SUCCESS, self.next - size

    def cuMemCreate(self, size, properties, flags):
        assert properties.location.id == 0
        assert size % PAGE == 0
        assert flags == 0
        if self.held + size > self.capacity:
            return Result.CUDA_ERROR_OUT_OF_MEMORY, None
        self.handles[len(self.handles) + 7] = size
        return Result.CUDA_SUCCESS, len(self.handles) + 6

    def cuMemMap(self, address, size, offset, handle, flags):
        assert self.handles[handle] == size
        inside = any(start <= address and address + size <= start + length for start, length in self.reserved.items())
        clash = any(address < start + length and start < address + size for start, (length, _) in self.mapped.items())
        if not inside or clash or offset or flags:
            return (Result.CUDA_ERROR_INVALID_VALUE,)
        self.mapped[address] = [size, False]
        return (Result.CUDA_SUCCESS,)

    def cuMemRelease(self, handle):
        del self.handles[handle]
        return (Result.CUDA_SUCCESS,)

    def cuMemSetAccess(self, address, size, descriptions, count):
        assert count == len(descriptions) == 1
        assert descriptions[0].flags == 3
        if self.fail == "access":
            return (Result.CUDA_ERROR_INVALID_VALUE,)
        assert self.mapped[address][0] == size
        self.mapped[address][1] = True
        return (Result.CUDA_SUCCESS,)

    def cuMemUnmap(self, address, size):
        if self.mapped.get(address, [0])[0] != size:
            return (Result.CUDA_ERROR_INVALID_VALUE,)
        del self.mapped[address]
        return (Result.CUDA_SUCCESS,)

    def cuMemAddressFree(self, address, size):
        assert self.reserved.pop(address) == size
        return (Result.CUDA_SUCCESS,)


class Seen(DeviceBacking):
    """A tensor of the right size stands for device memory; where it lies is noted."""

    zeroed = False

    def __init__(self, api):
        super().__init__(0, api)
        self.views = []

    def view(self, address, nbytes):
        assert any(s <= address < s + size for s, (size, accessible) in self._api.mapped.items() if accessible)
        self.views.append((address, nbytes))
        return torch.full((nbytes,), 255, dtype=torch.uint8)


def test_tensors_of_a_tag_lie_behind_each_other_and_share_pieces():
    driver = Driver()
    backing = Seen(driver)
    arena = Arena(backing, LIMIT)
    small = [arena.tensor(WEIGHTS, (100,), torch.float32) for _ in range(3)]
    assert [each.dtype for each in small] == [torch.float32] * 3
    assert [address % 512 for address, _ in backing.views] == [0, 0, 0]
    assert [b - a for (a, _), (b, _) in zip(backing.views, backing.views[1:])] == [512, 512]
    assert driver.held == GROW
    large = arena.tensor(WEIGHTS, (70 * MIB // 2, 2), torch.bfloat16)
    assert large.shape == (35 * MIB, 2)
    assert len(driver.mapped) == 2  # the second piece begins where the first ends
    (first, (size, _)), (second, _) = sorted(driver.mapped.items())
    assert first + size == second
    assert driver.held == pytest.approx(140 * MIB, abs=GROW)
    assert not driver.handles  # each is released once it is mapped


def test_what_is_dropped_comes_back_in_its_place():
    driver = Driver()
    backing = Seen(driver)
    arena = Arena(backing, LIMIT)
    for _ in range(4):
        arena.tensor(WEIGHTS, (50 * MIB,), torch.uint8)
    arena.tensor(KV_CACHE, (10 * MIB,), torch.uint8)
    starts = {min(driver.mapped), max(driver.mapped)}
    held = driver.held
    given = arena.drop(WEIGHTS)
    assert given >= 200 * MIB
    assert driver.held == held - given
    assert arena.drop(WEIGHTS) == 0
    assert arena.parts(WEIGHTS) == []
    with pytest.raises(MemoryError, match="restore it"):
        arena.tensor(WEIGHTS, (1,), torch.uint8)
    arena.restore(WEIGHTS)
    arena.restore(WEIGHTS)
    assert min(driver.mapped) in starts
    assert arena.nbytes(WEIGHTS) == 200 * MIB
    assert [part.numel() for part in arena.parts(WEIGHTS)] == [200 * MIB]
    again = arena.tensor(WEIGHTS, (MIB,), torch.uint8)
    assert again.numel() == MIB
    arena.close()
    assert (driver.mapped, driver.handles, driver.reserved) == ({}, {}, {})


def test_only_memory_that_is_not_zeroed_by_itself_is_zeroed():
    arena = Arena(Seen(Driver()), LIMIT)
    assert not arena.zeros(KV_CACHE, (8,), torch.float32).any()
    assert arena.tensor(KV_CACHE, (8,), torch.uint8).all()


def test_a_lack_of_memory_leaves_all_as_it_was():
    driver = Driver(capacity=100 * MIB)
    arena = Arena(Seen(driver), LIMIT)
    arena.tensor(WEIGHTS, (MIB,), torch.uint8)
    arena.tensor(WEIGHTS, (80 * MIB,), torch.uint8)  # no room to grow ahead
    held = driver.held
    assert held <= 100 * MIB
    with pytest.raises(MemoryError):
        arena.tensor(WEIGHTS, (60 * MIB,), torch.uint8)
    assert driver.held == held
    arena.drop(WEIGHTS)
    driver.capacity = 10 * MIB
    with pytest.raises(MemoryError):
        arena.restore(WEIGHTS)
    driver.capacity = 100 * MIB
    arena.restore(WEIGHTS)
    with pytest.raises(MemoryError, match="are the most"):
        arena.tensor(WEIGHTS, (LIMIT,), torch.uint8)


def test_memory_comes_back_piece_by_piece():
    driver = Driver()
    arena = Arena(Seen(driver), LIMIT)
    arena.tensor(WEIGHTS, (70 * MIB + 5,), torch.uint8)
    arena.drop(WEIGHTS)
    sizes = [piece.numel() for piece in arena.restoring(WEIGHTS, 32 * MIB)]
    assert sizes == [32 * MIB, 32 * MIB, 6 * MIB + 5]
    assert list(arena.restoring(WEIGHTS, 32 * MIB)) == []  # it is all there
    assert [part.numel() for part in arena.parts(WEIGHTS)] == [70 * MIB + 5]
    arena.drop(WEIGHTS)
    assert driver.held == 0

    driver.capacity = 40 * MIB
    seen = []
    with pytest.raises(MemoryError):
        seen.extend(arena.restoring(WEIGHTS, 32 * MIB))
    assert (len(seen), driver.held, arena.parts(WEIGHTS)) == (1, 0, [])
    pieces = arena.restoring(WEIGHTS, 32 * MIB)
    next(pieces)
    pieces.close()  # whoever copies has failed
    assert (driver.held, arena.parts(WEIGHTS)) == (0, [])


def test_a_piece_without_access_is_not_kept():
    driver = Driver()
    arena = Arena(Seen(driver), LIMIT)
    driver.fail = "access"
    with pytest.raises(RuntimeError, match="cuMemSetAccess failed: CUDA_ERROR_INVALID_VALUE"):
        arena.tensor(WEIGHTS, (1,), torch.uint8)
    assert driver.held == 0
    driver.fail = None
    arena.tensor(WEIGHTS, (1,), torch.uint8)


def test_much_memory_comes_and_goes_in_pieces(monkeypatch):
    monkeypatch.setattr("octavo.platform.arena.PIECE", 100 * MIB)
    driver = Driver(capacity=500 * MIB)
    backing = Seen(driver)
    arena = Arena(backing, LIMIT)
    arena.tensor(KV_CACHE, (330 * MIB,), torch.uint8)
    ends = [(address, address + size) for address, (size, _) in sorted(driver.mapped.items())]
    assert len(ends) == 4
    assert all(end == start for (_, end), (start, _) in itertools.pairwise(ends))
    assert arena.drop(KV_CACHE) == 330 * MIB
    assert driver.held == 0
    arena.restore(KV_CACHE)
    assert len(driver.mapped) == 4
    with pytest.raises(MemoryError):
        arena.tensor(KV_CACHE, (250 * MIB,), torch.uint8)
    assert (driver.held, len(driver.mapped)) == (330 * MIB, 4)
    arena.tensor(KV_CACHE, (150 * MIB,), torch.uint8)


def test_a_discarded_tag_begins_anew():
    driver = Driver()
    arena = Arena(Seen(driver), LIMIT)
    arena.tensor(KV_CACHE, (300 * MIB,), torch.uint8)
    arena.discard(KV_CACHE)
    assert (driver.held, arena.nbytes(KV_CACHE)) == (0, 0)
    arena.tensor(KV_CACHE, (MIB,), torch.uint8)
    assert driver.held <= GROW


def test_memory_that_cannot_go_says_why():
    arena = NoArena(torch.device("cpu"), "no such thing here")
    made = arena.zeros(KV_CACHE, (4, 4), torch.float32)
    assert not made.any()
    assert arena.nbytes(KV_CACHE) == 64
    for act in (arena.drop, arena.parts):
        with pytest.raises(ConfigError, match="no such thing here"):
            act(KV_CACHE)
    arena.restore(KV_CACHE)
    arena.discard(KV_CACHE)
    arena.close()


@linux
def test_host_memory_goes_and_addresses_stay():
    arena = Arena(HostBacking(), 4096 * MIB)
    held = arena.tensor(WEIGHTS, (64 * MIB // 4,), torch.float32)
    other = arena.tensor(KV_CACHE, (100,), torch.int32).fill_(7)
    address, before = held.data_ptr(), psutil.Process().memory_info().rss
    assert not held.any()
    held.fill_(3.0)
    grown = psutil.Process().memory_info().rss
    assert grown - before > 50 * MIB
    assert arena.drop(WEIGHTS) >= 64 * MIB
    assert grown - psutil.Process().memory_info().rss > 50 * MIB
    arena.restore(WEIGHTS)
    held[: MIB // 4].fill_(1.0)
    assert MIB <= arena.drop(WEIGHTS) < 8 * MIB, "what was never touched took no memory"
    arena.restore(WEIGHTS)
    assert held.data_ptr() == address
    assert not held.any()
    held[:10] = torch.arange(10.0)
    assert arena.parts(WEIGHTS)[0].numpy().view(np.float32)[:10].tolist() == list(range(10))
    assert (other == 7).all()
    arena.close()
    assert held[3] == 0.0  # emptied, but a tensor keeps its mapping: touching it is no fault


@linux
def test_the_cpu_platform_gives_an_arena():
    arena = CpuPlatform().arena()
    assert arena.why_not == ""
    made = arena.tensor(WEIGHTS, (3, 5), torch.bfloat16)
    assert made.shape == (3, 5)
    assert TAGS == ("weights", "kv_cache")


def test_level_one_is_refused_where_the_container_has_no_room(monkeypatch):
    monkeypatch.setattr(pinned, "memory_limits", lambda: (2048 * MIB, 4096 * MIB))
    pinned.check_room(1024 * MIB, WEIGHTS)
    with pytest.raises(ConfigError, match=r"2 GiB are free .*; level 2 drops them") as caught:
        pinned.check_room(1800 * MIB, WEIGHTS)
    assert "\n" not in str(caught.value)


class Pins:
    """The part of the bindings that pins host memory."""

    CUresult = Result

    def __init__(self, fail_at=99):
        self.pinned, self.count, self.fail_at = {}, 0, fail_at

    def cuMemHostRegister(self, address, size, flags):
        assert flags == 0
        self.count += 1
        if self.count == self.fail_at:
            return (Result.CUDA_ERROR_OUT_OF_MEMORY,)
        self.pinned[address] = size
        return (Result.CUDA_SUCCESS,)

    def cuMemHostUnregister(self, address):
        del self.pinned[address]
        return (Result.CUDA_SUCCESS,)


@linux
def test_contents_are_put_aside_and_brought_back(monkeypatch):
    for name in ("synchronize", "set_device"):
        monkeypatch.setattr(torch.cuda, name, lambda _: None)
    monkeypatch.setattr(pinned, "CHUNK", 3 * MIB)
    arena, pins = Arena(HostBacking(), LIMIT), Pins()
    held = arena.tensor(WEIGHTS, (10 * MIB // 4,), torch.int32).copy_(torch.arange(10 * MIB // 4))
    aside = pinned.put_aside(arena, WEIGHTS, pins, 0)
    assert aside.given >= 10 * MIB
    assert sum(pins.pinned.values()) == 10 * MIB
    assert arena.parts(WEIGHTS) == []
    aside.bring_back()
    assert (held == torch.arange(10 * MIB // 4)).all()
    for thread in pinned.threading.enumerate():
        if thread.name == "octavo-unpin":
            thread.join()
    assert pins.pinned == {}


@linux
def test_a_host_that_will_not_pin_refuses_with_nothing_changed(monkeypatch):
    for name in ("synchronize", "set_device"):
        monkeypatch.setattr(torch.cuda, name, lambda _: None)
    monkeypatch.setattr(pinned, "CHUNK", 3 * MIB)
    arena, pins = Arena(HostBacking(), LIMIT), Pins(fail_at=3)
    held = arena.tensor(WEIGHTS, (10 * MIB,), torch.uint8).fill_(5)
    with pytest.raises(ConfigError, match="would not pin 3 MiB"):
        pinned.put_aside(arena, WEIGHTS, pins, 0)
    assert pins.pinned == {}
    assert (held == 5).all()


def test_a_gpu_without_the_bindings_keeps_its_memory(monkeypatch):
    platform = CudaPlatform()
    monkeypatch.setattr(device_memory, "driver", lambda: None)
    assert "cuda-bindings is not installed" in platform.arena().why_not


def test_a_driver_without_virtual_memory_is_found_out_at_once(monkeypatch):
    platform, driver = CudaPlatform(), Driver()
    monkeypatch.setattr(device_memory, "driver", lambda: driver)
    monkeypatch.setattr(platform, "memory", lambda: (LIMIT, LIMIT))
    driver.fail = "access"
    assert "does not work here: cuMemSetAccess failed" in platform.arena().why_not
    assert driver.held == 0


@linux
def test_a_host_without_addresses_keeps_its_memory(monkeypatch):
    monkeypatch.setattr("octavo.platform.cpu.memory_limits", lambda: (1 << 62, 1 << 62))
    assert "no room for" in CpuPlatform().arena().why_not
