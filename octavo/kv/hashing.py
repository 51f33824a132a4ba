"""Chained digests of token blocks: equal digests mean equal tokens from the first one on.

Each digest covers the one before it, and the chain begins with the caller's salt, so that a block is found only
by those who share both its whole past and its salt.
"""

from array import array
from collections import OrderedDict
from collections.abc import Sequence
from hashlib import blake2b

DIGEST_BYTES = 16
STRIDE = 32  # blocks between two marks of a trail
LONGEST = 256  # strides of a trail


def chain_seed(cache_salt: str = "") -> bytes:
    """What goes before the first block."""
    return blake2b(b"octavo kv\0" + cache_salt.encode(errors="surrogatepass"), digest_size=DIGEST_BYTES).digest()


class Trail:
    """The digests of a long run of blocks, kept for whoever begins with the same ones: `data` are the tokens' bytes,
    `marks` what the running hash stood at behind every `STRIDE` blocks."""

    __slots__ = ("data", "digests", "marks")

    def __init__(self, data: bytes, digests: list[bytes], marks: list[blake2b]) -> None:
        self.data = data
        self.digests = digests
        self.marks = marks

    def shared(self, data: bytes, width: int) -> int:
        """Strides that `data` has in common with this from the first on; `width` bytes are a stride."""
        low, high = 0, min(len(data), len(self.data)) // width
        mine = self.data
        while low < high:
            middle = (low + high + 1) // 2
            if mine[low * width : middle * width] == data[low * width : middle * width]:
                low = middle
            else:
                high = middle - 1
        return low


class Trails:
    """The latest trails, by the salt and the first stride: comparing bytes is far cheaper than hashing them again."""

    def __init__(self, capacity: int = 32) -> None:
        self._capacity = capacity
        self._trails: OrderedDict[tuple[bytes, bytes], Trail] = OrderedDict()

    def find(self, seed: bytes, data: bytes, width: int) -> Trail | None:
        """The one that begins as `data` does."""
        return self._trails.get((seed, data[:width]))

    def keep(self, seed: bytes, trail: Trail, width: int) -> None:
        """In the place of the one that began so before, or of the oldest."""
        key = seed, trail.data[:width]
        self._trails[key] = trail
        self._trails.move_to_end(key)
        if len(self._trails) > self._capacity:
            self._trails.popitem(last=False)


class HashChain:
    """The digests of one request's full blocks, grown as its tokens become known; after the first stride none is
    computed twice.

    One hash runs over the seed and all tokens; the digest of a block is what it stands at behind it. Token ids are
    hashed as 32-bit integers in the machine's order of bytes.
    """

    __slots__ = ("_running", "_seed", "_trails", "block_size", "digests")

    def __init__(self, block_size: int, seed: bytes, trails: Trails | None = None) -> None:
        self.digests: list[bytes] = []
        self.block_size = block_size
        self._seed = seed
        self._running = blake2b(seed, digest_size=DIGEST_BYTES)
        self._trails = trails

    def extend(self, tokens: Sequence[int], num_blocks: int) -> list[bytes]:
        """Digests of the first `num_blocks` blocks at least; the tokens of those blocks must be known."""
        digests, size, trails = self.digests, self.block_size, self._trails
        along = trails is not None and len(digests) <= STRIDE <= num_blocks - len(digests)
        if along and digests:  # of the first stride, which a look at the index has asked for
            self._running = blake2b(self._seed, digest_size=DIGEST_BYTES)
            digests.clear()
        data = array("I", tokens[len(digests) * size : num_blocks * size]).tobytes()
        if along and trails is not None:
            self._follow(data, 4 * size, trails)
        else:
            self._hash(data, 4 * size)
        return digests

    def next(self, place: int, data: bytes) -> bytes:
        """Digest of the block at `place`, which is `data`: one that is known, or the next."""
        digests = self.digests
        if place == len(digests):
            self._running.update(data)
            digests.append(self._running.copy().digest())
        return digests[place]

    def _follow(self, data: bytes, width: int, trails: Trails) -> None:
        """All of `data` from the first block on, as far as can be along a known trail; a trail for those to come."""
        stride = STRIDE * width
        known = trails.find(self._seed, data, stride)
        marks: list[blake2b] = []
        if known is not None:
            common = known.shared(data, stride)
            marks = known.marks[:common]
            self.digests += known.digests[: common * STRIDE]
            self._running = marks[-1].copy()
            if common == min(len(data) // stride, LONGEST):  # nothing that would make a longer trail
                self._hash(data[common * stride :], width)
                return
        whole = min(len(data) // stride, LONGEST) * stride
        for start in range(len(marks) * stride, whole, stride):
            self._hash(data[start : start + stride], width)
            marks.append(self._running.copy())
        trails.keep(self._seed, Trail(data[:whole], self.digests.copy(), marks), stride)
        self._hash(data[whole:], width)

    def _hash(self, data: bytes, width: int) -> None:
        update, copy, append = self._running.update, self._running.copy, self.digests.append
        for start in range(0, len(data), width):
            update(data[start : start + width])
            append(copy().digest())
