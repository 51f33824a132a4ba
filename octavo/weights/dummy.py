"""Random weights from nothing but the model's shapes, for sizing and for speed tests without a download."""

from hashlib import blake2b

import torch
from torch import Tensor, nn

STD = 0.02  # transformers' usual initialisation; keeps activations finite at any depth


def fill_dummy(model: nn.Module, seed: int = 0) -> None:
    """Fill every parameter in place, on its own device, so that many gigabytes take seconds on a GPU."""
    for name, parameter in model.named_parameters():
        fill(name, parameter, seed)


def fill(name: str, tensor: Tensor, seed: int = 0) -> None:
    """Norm weights become one, all else normal with deviation `STD`. The values depend on seed, name and device kind
    only, not on the order of the calls."""
    with torch.no_grad():
        if "norm" in name and name.endswith("weight"):
            tensor.fill_(1.0)
            return
        digest = blake2b(f"{seed}:{name}".encode(), digest_size=8).digest()
        generator = torch.Generator(device=tensor.device)
        generator.manual_seed(int.from_bytes(digest, "little") >> 1)
        tensor.normal_(0.0, STD, generator=generator)
