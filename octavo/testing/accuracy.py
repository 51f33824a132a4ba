"""How far the packed CPU path is from the same weights made plain: log-probabilities of a text, token by token.

The reference is the torch decoder in fp32 over the dequantized checkpoint. Both read the text in the same chunks.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from octavo.base.config import EngineConfig
from octavo.base.specs import cache_specs, group_layers
from octavo.kernels.cpu.loader import machine
from octavo.kernels.ops import select
from octavo.models.decoder import build
from octavo.models.native import accelerate
from octavo.nn.quant.native import Native
from octavo.testing.parity import Chunk, PagedModel
from octavo.weights.facts import ModelFiles
from octavo.weights.load import load_weights
from octavo.weights.source import open_source

CHUNK = 256
BLOCK = 16
TOP = 5


@dataclass(frozen=True)
class Accuracy:
    """Differences in log-probability (nats), of the text's own tokens and the five likeliest of each position together,
    and perplexities of the text."""

    largest: float
    mean: float
    median: float
    perplexity: float
    reference_perplexity: float

    @property
    def perplexity_change(self) -> float:
        """Relative."""
        return self.perplexity / self.reference_perplexity - 1


class _Packed(PagedModel):
    """The native decoder, as the worker makes it."""

    def __init__(self, files: ModelFiles, config: EngineConfig, threads: int | None, blocks: int) -> None:
        super().__init__(_checkpoint(files), block_size=BLOCK, num_blocks=blocks, padding=0)
        method = Native(machine(threads), config.model.quantization)
        cpu = torch.device("cpu")
        decoder = build(self.arch, select(cpu), torch.float32, cpu, method=method)
        load_weights(decoder, open_source(files, progress=False))
        self.decoder, kept = accelerate(decoder, BLOCK, config, torch.float32)
        spec = cache_specs(self.arch.kv_specs(), str(kept).removeprefix("torch."))[0]
        self.pool = torch.zeros(*self.pool.shape[:-1], spec.head_dim, dtype=kept)
        places = {layer: slot for group in self.groups for slot, layer in enumerate(group.layers)}
        self.views = [self.pool[:, places[layer]] for layer in range(len(places))]


def compare(
    files: ModelFiles, tokens: list[int], configs: Sequence[EngineConfig], threads: int | None = None
) -> list[Accuracy]:
    """Run `tokens` through the reference, and through the native path in each of `configs`. Needs memory for the model
    in fp32."""
    groups = len(group_layers(files.arch.kv_specs()))
    blocks = groups * (len(tokens) // BLOCK + 2) + 1
    plain = PagedModel(_checkpoint(files), block_size=BLOCK, num_blocks=blocks, padding=0)
    text, top, likeliest = _scores(plain, tokens)
    del plain
    found = []
    for config in configs:
        packed = _Packed(files, config, threads, blocks)
        text_packed, top_packed, _ = _scores(packed, tokens, likeliest)
        apart = torch.cat(((text - text_packed).abs(), (top - top_packed).abs().flatten()))
        found.append(
            Accuracy(
                largest=float(apart.max()),
                mean=float(apart.mean()),
                median=float(apart.median()),
                perplexity=math.exp(-float(text_packed.mean())),
                reference_perplexity=math.exp(-float(text.mean())),
            )
        )
    return found


def _checkpoint(files: ModelFiles) -> Any:
    return SimpleNamespace(config=files.config, checkpoint=open_source(files, progress=False))


def _scores(model: PagedModel, tokens: list[int], likeliest: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """Log-probabilities of each next token ``[T - 1]``, of the likeliest ``[T - 1, TOP]``, and which those are."""
    sequence = model.sequence(tokens)
    following = torch.tensor(tokens[1:])
    text, top, ids = [], [], []
    for at in range(0, len(tokens) - 1, CHUNK):
        count = min(CHUNK, len(tokens) - 1 - at)
        logprobs = model.step([Chunk(sequence, count)])[0]
        chosen = logprobs.topk(TOP, -1).indices if likeliest is None else likeliest[at : at + count]
        text.append(logprobs.gather(1, following[at : at + count, None])[:, 0])
        top.append(logprobs.gather(1, chosen))
        ids.append(chosen)
    return torch.cat(text), torch.cat(top), torch.cat(ids)
