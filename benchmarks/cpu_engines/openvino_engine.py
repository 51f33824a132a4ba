"""OpenVINO GenAI for benchmarks/cpu.py: its pipeline reads the GGUF file itself (not every block format)."""

import sys
import time

from figures import STARTED, measure, prompt, rng_of


def main(model: str, threads: int) -> None:
    import numpy as np
    import openvino as ov
    import openvino_genai as genai

    scheduler = genai.SchedulerConfig()
    scheduler.cache_size = 2
    scheduler.enable_prefix_caching = False
    scheduler.max_num_batched_tokens = 2048
    scheduler.max_num_seqs = 64
    properties = {"INFERENCE_NUM_THREADS": threads}
    pipeline = genai.ContinuousBatchingPipeline(model, scheduler, "CPU", properties)

    def generate(batch: int, length: int, count: int) -> float:
        config = genai.GenerationConfig()
        config.max_new_tokens, config.ignore_eos, config.do_sample = count, True, False
        rng = rng_of(batch)
        prompts = [ov.Tensor(np.array([prompt(rng, length)], dtype=np.int64)) for _ in range(batch)]
        begin = time.perf_counter()
        pipeline.generate(prompts, [config] * batch)
        return time.perf_counter() - begin

    generate(1, 8, 1)
    measure(generate, time.perf_counter() - STARTED)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
