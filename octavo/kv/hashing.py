"""Chained digests of token blocks: equal digests mean equal tokens from the first one on.

Each digest covers the one before it, and the chain begins with the caller's salt, so that a block is found only
by those who share both its whole past and its salt.
"""

from array import array
from collections.abc import Sequence
from hashlib import blake2b

DIGEST_BYTES = 16


def chain_seed(cache_salt: str = "") -> bytes:
    """What goes before the first block."""
    return blake2b(b"octavo kv\0" + cache_salt.encode(errors="surrogatepass"), digest_size=DIGEST_BYTES).digest()


class HashChain:
    """The digests of one request's full blocks, grown as its tokens become known and never computed twice.

    One hash runs over the seed and all tokens; the digest of a block is what it stands at behind it. Token ids are
    hashed as 32-bit integers in the machine's order of bytes.
    """

    __slots__ = ("_block_size", "_running", "digests")

    def __init__(self, block_size: int, seed: bytes) -> None:
        self.digests: list[bytes] = []
        self._block_size = block_size
        self._running = blake2b(seed, digest_size=DIGEST_BYTES)

    def extend(self, tokens: Sequence[int], num_blocks: int) -> list[bytes]:
        """Digests of the first `num_blocks` blocks at least; the tokens of those blocks must be known."""
        digests, size = self.digests, self._block_size
        data = array("I", tokens[len(digests) * size : num_blocks * size]).tobytes()
        update, copy, width = self._running.update, self._running.copy, 4 * size
        for start in range(0, len(data), width):
            update(data[start : start + width])
            digests.append(copy().digest())
        return digests


def block_digests(tokens: Sequence[int], block_size: int, cache_salt: str = "") -> list[bytes]:
    """Digests of all full blocks of `tokens`."""
    chain = HashChain(block_size, chain_seed(cache_salt))
    return chain.extend(tokens, len(tokens) // block_size)
