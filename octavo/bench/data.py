"""Requests to send: token ids (or text) and how long each answer must be. Everything follows from a seed."""

import json
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from octavo.base.errors import ConfigError

VOCAB = 10_000  # ids that every tokenizer has, and none of them special where it matters
MAX_FILE_BYTES = 2 << 30
SHAREGPT_MEAN_IN = 161.0  # means of the ShareGPT set (Kwon et al. 2023, figure 11)
SHAREGPT_MEAN_OUT = 338.0


@dataclass(frozen=True, slots=True)
class Load:
    """Requests in order of sending; the lists run in parallel."""

    prompts: Sequence[list[int] | str]
    output_lens: list[int]

    def __len__(self) -> int:
        return len(self.prompts)

    @property
    def total_out(self) -> int:
        return sum(self.output_lens)


def mixed(
    count: int = 256,
    *,
    min_in: int = 100,
    max_in: int = 1024,
    min_out: int = 100,
    max_out: int = 1024,
    seed: int = 0,
) -> Load:
    """Lengths in and out drawn evenly from their ranges, the set that engines are compared on.

    With the defaults: 142,827 tokens in and 133,966 out.
    """
    rng = random.Random(seed)
    prompts = [[rng.randint(0, VOCAB) for _ in range(rng.randint(min_in, max_in))] for _ in range(count)]
    return Load(prompts, [rng.randint(min_out, max_out) for _ in range(count)])


def even(count: int, input_len: int, output_len: int, *, seed: int, spread: float = 0.0) -> Load:
    """Requests of one length, or within ``1 +- spread`` of it. Another seed shares no prefix with this one."""
    rng = random.Random(seed)

    def around(length: int) -> int:
        if not spread:
            return length
        return max(1, rng.randint(math.floor(length * (1 - spread)), math.ceil(length * (1 + spread))))

    lengths = [(around(input_len), around(output_len)) for _ in range(count)]
    return Load([[rng.randint(0, VOCAB) for _ in range(length)] for length, _ in lengths], [out for _, out in lengths])


def sharegpt_like(count: int, *, seed: int, max_len: int = 2048) -> Load:
    """Lengths as people's chats have them: log-normal, with ShareGPT's means and long tails."""
    rng = random.Random(seed)
    sigma = 1.1

    def draw(mean: float) -> int:
        return min(max_len // 2, max(4, round(rng.lognormvariate(math.log(mean) - sigma**2 / 2, sigma))))

    lengths = [(draw(SHAREGPT_MEAN_IN), draw(SHAREGPT_MEAN_OUT)) for _ in range(count)]
    return Load([[rng.randint(0, VOCAB) for _ in range(length)] for length, _ in lengths], [out for _, out in lengths])


def sharegpt_file(path: str, count: int, *, seed: int, output_len: int | None = None) -> Load:
    """First turns of a ShareGPT file: ``[{"conversations": [{"value": prompt}, {"value": answer}, ...]}, ...]``.

    Without `output_len` an answer is as long as the one on file, at four characters a token. Raises ConfigError.
    """
    try:
        file = Path(path)
        if file.stat().st_size > MAX_FILE_BYTES:
            raise ConfigError(f"{path}: larger than {MAX_FILE_BYTES} bytes")
        entries = json.loads(file.read_bytes())
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: {error}") from None
    pairs = [pair for entry in entries if (pair := _first_turn(entry))] if isinstance(entries, list) else []
    if not pairs:
        raise ConfigError(f"{path}: no conversations of two turns in it")
    random.Random(seed).shuffle(pairs)
    chosen = [pairs[index % len(pairs)] for index in range(count)]
    return Load([prompt for prompt, _ in chosen], [output_len or max(4, len(answer) // 4) for _, answer in chosen])


def _first_turn(entry: Any) -> tuple[str, str] | None:
    turns = entry.get("conversations") if isinstance(entry, dict) else None
    if not isinstance(turns, list) or len(turns) < 2 or not all(isinstance(turn, dict) for turn in turns[:2]):
        return None
    prompt, answer = turns[0].get("value"), turns[1].get("value")
    return (prompt, answer) if isinstance(prompt, str) and isinstance(answer, str) and prompt and answer else None
