"""Random weights from nothing but the model's shapes, for sizing and for speed tests without a download."""

from collections.abc import Iterator
from hashlib import blake2b

import torch
from torch import Tensor

from octavo.weights.source import Entry

STD = 0.02  # the usual initialisation of transformers; keeps activations finite at any depth


class DummySource:
    """Fills parameters in place, on their own device; the values depend on the seed and the name only."""

    dummy = True

    def __init__(self, seed: int = 0) -> None:
        self.seed = seed

    def tensors(self) -> Iterator[tuple[str, Entry]]:
        """None: there is no file."""
        return iter(())

    def fill(self, name: str, tensor: Tensor) -> None:
        """Norm weights become one, everything else normal with standard deviation `STD`."""
        with torch.no_grad():
            if "norm" in name.rsplit(".", 2)[-2 if "." in name else -1] and name.endswith("weight"):
                tensor.fill_(1.0)
                return
            digest = blake2b(f"{self.seed}:{name}".encode(), digest_size=8).digest()
            generator = torch.Generator(device=tensor.device)
            generator.manual_seed(int.from_bytes(digest, "little") >> 1)
            tensor.normal_(0.0, STD, generator=generator)
