"""An arena's backing on a GPU: CUDA's virtual memory management, through NVIDIA's own bindings.

Addresses are reserved (cuMemAddressReserve), physical memory is made (cuMemCreate) and mapped there (cuMemMap), and
access is granted (cuMemSetAccess). The handle is released at once, so the memory lives as long as its mapping:
unmapping gives it back. `cuda-bindings` comes with every torch for CUDA on Linux. See the CUDA driver API, "Virtual
Memory Management".
"""

from typing import Any

import torch


def driver() -> Any | None:
    """The bindings; None where they are not installed."""
    try:
        from cuda.bindings import driver as found
    except ImportError:
        return None
    return found


class _Bytes:
    """Device memory as the CUDA array interface (version 3) shows it; torch makes a tensor of it without a copy."""

    def __init__(self, address: int, nbytes: int) -> None:
        self.__cuda_array_interface__ = {
            "shape": (nbytes,),
            "typestr": "|u1",
            "data": (address, False),
            "strides": None,
            "version": 3,
        }


class DeviceBacking:
    """Backing over the memory of CUDA device `index`, whose context must be current. `api`: the bindings."""

    zeroed = False  # the driver does not say what is in fresh memory

    def __init__(self, index: int, api: Any) -> None:
        """Raises RuntimeError where the driver or the device has no such memory."""
        self._index = index
        self._api = api
        self._properties = api.CUmemAllocationProp()
        self._properties.type = api.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
        self._properties.location.type = api.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
        self._properties.location.id = index
        self._access = api.CUmemAccessDesc()
        self._access.location.type = api.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
        self._access.location.id = index
        self._access.flags = api.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
        option = api.CUmemAllocationGranularity_flags.CU_MEM_ALLOC_GRANULARITY_RECOMMENDED
        self.granularity = int(self._call("cuMemGetAllocationGranularity", self._properties, option))

    def reserve(self, size: int) -> int:
        return int(self._call("cuMemAddressReserve", size, 0, 0, 0))

    def map(self, address: int, size: int) -> None:
        handle = self._call("cuMemCreate", size, self._properties, 0)
        try:
            self._call("cuMemMap", address, size, 0, handle, 0)
        finally:
            self._call("cuMemRelease", handle)
        try:
            self._call("cuMemSetAccess", address, size, [self._access], 1)
        except BaseException:
            self.unmap(address, size)
            raise

    def unmap(self, address: int, size: int) -> int:
        self._call("cuMemUnmap", address, size)
        return size

    def free(self, address: int, size: int) -> None:
        self._call("cuMemAddressFree", address, size)

    def view(self, address: int, nbytes: int) -> torch.Tensor:
        return torch.as_tensor(_Bytes(address, nbytes), device=torch.device("cuda", self._index))

    def _call(self, name: str, *arguments: Any) -> Any:
        """Call the driver; its result, if it has one. Raises MemoryError, or RuntimeError with the driver's word."""
        code, *results = getattr(self._api, name)(*arguments)
        if code == self._api.CUresult.CUDA_ERROR_OUT_OF_MEMORY:
            raise MemoryError(f"{name}: the device has no such memory left")
        if code != self._api.CUresult.CUDA_SUCCESS:
            raise RuntimeError(f"{name} failed: {getattr(code, 'name', code)}")
        return results[0] if results else None
