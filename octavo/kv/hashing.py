"""Chained digests of token blocks: equal digests mean equal tokens from the first one on.

Each digest covers the one before it, and the chain begins with the caller's salt, so that a block is found only
by those who share both its whole past and its salt.
"""

from collections.abc import Sequence
from hashlib import blake2b
from struct import Struct

DIGEST_BYTES = 16


def chain_seed(cache_salt: str = "") -> bytes:
    """What the first block's digest is chained to."""
    return blake2b(b"octavo kv\0" + cache_salt.encode(errors="surrogatepass"), digest_size=DIGEST_BYTES).digest()


class HashChain:
    """The digests of one request's full blocks, grown as its tokens become known and never computed twice.

    Token ids are hashed as little-endian 32-bit integers.
    """

    __slots__ = ("_block_size", "_pack", "_seed", "digests")

    def __init__(self, block_size: int, seed: bytes) -> None:
        self.digests: list[bytes] = []
        self._block_size = block_size
        self._pack = Struct(f"<{block_size}i").pack
        self._seed = seed

    def extend(self, tokens: Sequence[int], num_blocks: int) -> list[bytes]:
        """Digests of the first `num_blocks` blocks at least; the tokens of those blocks must be known."""
        digests, size, pack = self.digests, self._block_size, self._pack
        parent = digests[-1] if digests else self._seed
        for start in range(len(digests) * size, num_blocks * size, size):
            parent = blake2b(parent + pack(*tokens[start : start + size]), digest_size=DIGEST_BYTES).digest()
            digests.append(parent)
        return digests


def block_digests(tokens: Sequence[int], block_size: int, cache_salt: str = "") -> list[bytes]:
    """Digests of all full blocks of `tokens`."""
    chain = HashChain(block_size, chain_seed(cache_salt))
    return chain.extend(tokens, len(tokens) // block_size)
