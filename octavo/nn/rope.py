"""Angles of the rotary embedding and its context extensions, each with its source.

All functions give inverse frequencies ``[dim / 2]`` fp32. The arithmetic follows transformers step by step in fp32:
at position 100,000 one rounding of a frequency is already visible in the cosine.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor


def default_frequencies(theta: float, dim: int) -> Tensor:
    """``theta ** (-2 i / dim)`` (Su et al. 2021)."""
    return 1.0 / _powers(theta, dim)


def linear_frequencies(theta: float, dim: int, factor: float) -> Tensor:
    """Position interpolation (Chen et al. 2023): positions count 1 / factor each."""
    return default_frequencies(theta, dim) / factor


def dynamic_frequencies(theta: float, dim: int, factor: float, original: int, length: Tensor) -> Tensor:
    """NTK-aware base that grows with the sequence (bloc97 and emozilla 2023): ``[T] int64 -> [T, dim / 2]``.

    Up to `original` tokens this is the plain rotation.
    """
    ratio = factor * length.clamp(min=original).double() / original - (factor - 1.0)
    base = (theta * ratio ** (dim / (dim - 2))).float().unsqueeze(1)
    exponent = torch.arange(0, dim, 2, device=length.device).float() / dim
    return 1.0 / base**exponent


def llama3_frequencies(
    theta: float, dim: int, factor: float, low_freq_factor: float, high_freq_factor: float, original: int
) -> Tensor:
    """Llama 3.1: slow dims are interpolated, fast ones kept, those between blended."""
    plain = default_frequencies(theta, dim)
    wavelength = 2 * math.pi / plain
    low, high = original / low_freq_factor, original / high_freq_factor
    scaled = torch.where(wavelength > low, plain / factor, plain)
    smooth = (original / wavelength - low_freq_factor) / (high_freq_factor - low_freq_factor)
    blended = (1 - smooth) * scaled / factor + smooth * scaled
    between = (wavelength >= high) & (wavelength <= low)
    return torch.where(between, blended, scaled)


def yarn_frequencies(
    theta: float, dim: int, factor: float, beta_fast: float, beta_slow: float, original: int, truncate: bool
) -> Tensor:
    """YaRN (Peng et al. 2023): dims that turn less than `beta_slow` times are interpolated, over `beta_fast` kept."""

    def dim_of(rotations: float) -> float:
        return dim * math.log(original / (rotations * 2 * math.pi)) / (2 * math.log(theta))

    low, high = dim_of(beta_fast), dim_of(beta_slow)
    if truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    if low == high:
        high += 0.001  # no division by zero
    ramp = ((torch.arange(dim // 2).float() - low) / (high - low)).clamp(0, 1)
    powers = _powers(theta, dim)
    keep = 1 - ramp
    return 1.0 / (factor * powers) * (1 - keep) + 1.0 / powers * keep


def yarn_attention_factor(factor: float, mscale: float, mscale_all_dim: float) -> float:
    """What YaRN multiplies cosines and sines by, where the config does not say."""

    def get(scale: float) -> float:
        return 1.0 if factor <= 1 else 0.1 * scale * math.log(factor) + 1.0

    return get(mscale) / get(mscale_all_dim) if mscale and mscale_all_dim else get(1.0)


def longrope_frequencies(theta: float, dim: int, factors: Sequence[float]) -> Tensor:
    """LongRoPE (Ding et al. 2024): one searched factor a dim, from the short or the long list."""
    exponent = torch.arange(0, dim, 2).float() / dim
    return 1.0 / (torch.tensor(factors, dtype=torch.float32) * theta**exponent)


def longrope_attention_factor(factor: float, original: int) -> float:
    """What LongRoPE multiplies cosines and sines by, where the config does not say."""
    return 1.0 if factor <= 1.0 else math.sqrt(1 + math.log(factor) / math.log(original))


def cos_sin(angles: Tensor, attention_factor: float) -> Tensor:
    """``[T, dim / 2] -> [T, dim]`` fp32: cosines, then sines."""
    return torch.cat((angles.cos(), angles.sin()), dim=-1) * attention_factor


def _powers(theta: float, dim: int) -> Tensor:
    powers: Tensor = theta ** (torch.arange(0, dim, 2).float() / dim)
    return powers
