"""llama.cpp (llama-cpp-python) for benchmarks/cpu.py, through its own batch interface: no sampling, no text."""

import sys
import time

from figures import BATCHES, CONTEXT, OUT, PROMPT, STARTED, measure, prompt, rng_of

Token = tuple[int, int, int, bool]  # id, position, sequence, whether its logits are wanted
STEP = 512


def main(model: str, threads: int) -> None:
    import llama_cpp as cpp

    cpp.llama_backend_init()
    loaded = cpp.llama_model_load_from_file(model.encode(), cpp.llama_model_default_params())
    params = cpp.llama_context_default_params()
    params.n_ctx = max(CONTEXT, max(BATCHES) * (PROMPT + OUT + 2))
    params.n_batch, params.n_ubatch = 2048, STEP
    params.n_threads = params.n_threads_batch = threads
    params.n_seq_max = max(BATCHES)
    params.kv_unified = True
    context = cpp.llama_init_from_model(loaded, params)
    memory = cpp.llama_get_memory(context)

    def decode(tokens: list[Token]) -> None:
        batch = cpp.llama_batch_init(len(tokens), 0, 1)
        batch.n_tokens = len(tokens)
        for i, (token, position, sequence, wanted) in enumerate(tokens):
            batch.token[i], batch.pos[i], batch.n_seq_id[i] = token, position, 1
            batch.seq_id[i][0], batch.logits[i] = sequence, wanted
        if cpp.llama_decode(context, batch):
            raise RuntimeError("llama_decode failed")
        cpp.llama_synchronize(context)
        cpp.llama_batch_free(batch)

    def generate(batch: int, length: int, count: int) -> float:
        cpp.llama_memory_clear(memory, True)
        rng = rng_of(batch)
        prompts = [prompt(rng, length) for _ in range(batch)]
        tokens = [(t, p, s, p == length - 1) for s, ids in enumerate(prompts) for p, t in enumerate(ids)]
        begin = time.perf_counter()
        for at in range(0, len(tokens), STEP):
            decode(tokens[at : at + STEP])
        for step in range(count - 1):
            decode([(1000 + step, length + step, sequence, True) for sequence in range(batch)])
        return time.perf_counter() - begin

    generate(1, 8, 1)
    measure(generate, time.perf_counter() - STARTED)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
