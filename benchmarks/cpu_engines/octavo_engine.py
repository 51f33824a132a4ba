"""Octavo for benchmarks/cpu.py: ``python octavo_engine.py MODEL.gguf THREADS [ACTIVATIONS]`` prints one JSON line."""

import sys
import time

from figures import CONTEXT, STARTED, measure, prompt, rng_of


def main(model: str, threads: int, activations: str) -> None:
    from octavo import LLM, SamplingParams

    llm = LLM(model, max_model_len=CONTEXT, threads=threads, cpu_activations=activations)

    def generate(batch: int, length: int, count: int) -> float:
        """Seconds for `batch` prompts of `length` tokens and `count` tokens out of each, none of them cached."""
        llm.reset_prefix_cache()
        params = SamplingParams(max_tokens=count, temperature=0.0, ignore_eos=True)
        rng = rng_of(batch)
        prompts = [prompt(rng, length) for _ in range(batch)]
        begin = time.perf_counter()
        llm.generate(prompts, params, use_tqdm=False)
        return time.perf_counter() - begin

    generate(1, 8, 1)
    first_token = time.perf_counter() - STARTED

    def shared_prefix() -> tuple[float, float]:
        """Seconds to the first token of a prompt of 1,000 tokens, and of another that begins with the same ones."""
        params = SamplingParams(max_tokens=1, temperature=0.0, ignore_eos=True)
        llm.reset_prefix_cache()
        rng = rng_of(99)
        shared = prompt(rng, 1000)
        times = []
        for tail in (prompt(rng, 8), prompt(rng, 8)):
            begin = time.perf_counter()
            llm.generate([shared + tail], params, use_tqdm=False)
            times.append(time.perf_counter() - begin)
        return times[0], times[1]

    measure(generate, first_token, shared_prefix)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3] if len(sys.argv) > 3 else "auto")
