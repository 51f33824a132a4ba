"""Streams of random weights held to schemas: a vocabulary that can spell JSON, and rates with and without."""

import random
import time
from collections.abc import Sequence
from typing import Any

from octavo.base.params import SamplingParams, StructuredOutputsParams
from octavo.base.wire import Vocabulary
from octavo.bench.data import even
from octavo.bench.gpu.setting import Sizes
from octavo.bench.structured.cost import schema_of

SPECIAL = (b"<unk>", b"<s>", b"</s>")
END = 2
HELP_S = 20.0
_JSON = [
    b'{"',
    b'":',
    b'",',
    b'"}',
    b'":"',
    b'","',
    b"[{",
    b'[{"',
    b"}]",
    b"[]",
    b"{}",
    b"null",
    b"true",
    b"false",
    b": ",
    b", ",
]


def vocabulary(size: int) -> Vocabulary:
    """Single bytes, pieces of JSON, and words of two to ten letters, half of them behind a space: the cost of a mask
    depends on how many tokens there are and on how they share beginnings."""
    draw = random.Random(7)
    tokens = [*SPECIAL, *(bytes([value]) for value in range(256)), *_JSON]
    known = set(tokens)
    while len(tokens) < size:
        letters = "".join(draw.choices("etaoinshrdlucmfwypvbgkqjxz0123456789_", k=draw.randint(2, 10)))
        word = (draw.choice(["", " "]) + draw.choice([letters, letters.capitalize()])).encode()
        if word not in known:
            known.add(word)
            tokens.append(word)
    return Vocabulary(tokens[:size], list(range(len(SPECIAL))), [END])


def dress(llm: Any) -> None:
    """Give a model with a stand-in tokenizer a vocabulary, as far as constraints are concerned."""
    client = llm._client
    seat = client.engine.core._seat
    seat.shutdown()  # it may have the stand-in's own vocabulary, which spells no JSON, and takes none after the first
    seat._compiler = None
    client.provide(lambda: vocabulary(client.ready.vocab_size))
    llm._text.tokenizer.eos_ids = (END,)


def helped(llm: Any) -> None:
    """Wait until the processes that help to follow constraints are there, if any are to come. A server starts them in
    its first quiet moment."""
    crew = llm._client.engine.core._seat._crew
    end = time.monotonic() + HELP_S
    while not crew.is_complete and time.monotonic() < end:
        crew.start()
        time.sleep(0.05)


def held_lengths(llm: Any, size: int, sizes: Sizes, seed: int) -> tuple[list[int], float]:
    """Tokens of each of `size` streams held to a schema of its own, and seconds for all of them."""
    return _timed(
        llm,
        sizes,
        [
            SamplingParams(
                temperature=1.0,
                max_tokens=sizes.held_out,
                detokenize=False,
                seed=seed + index,
                structured_outputs=StructuredOutputsParams(json=schema_of(index)),
            )
            for index in range(size)
        ],
        seed,
    )


def free_seconds(llm: Any, lengths: Sequence[int], sizes: Sizes, seed: int) -> float:
    """Seconds for free streams as long as these: those that are held may end before their limit, and the batch that is
    left gives fewer tokens a step, held or not."""
    params = [
        SamplingParams(temperature=1.0, max_tokens=length, detokenize=False, seed=seed + index, ignore_eos=True)
        for index, length in enumerate(lengths)
    ]
    return _timed(llm, sizes, params, seed)[1]


def _timed(llm: Any, sizes: Sizes, params: list[SamplingParams], seed: int) -> tuple[list[int], float]:
    prompts = even(len(params), sizes.decode_in, 1, seed=seed).prompts
    begin = time.perf_counter()
    results = llm.generate([{"prompt_token_ids": prompt} for prompt in prompts], params, use_tqdm=False)
    seconds = time.perf_counter() - begin
    return [len(result.outputs[0].token_ids) for result in results], seconds
