"""`octavo bench serve`: a running server under load, as its clients see it."""

import asyncio
import math
import sys
from typing import Annotated, Any, Literal

from msgspec import Struct

from octavo.base.config import doc
from octavo.base.errors import ConfigError, EngineError
from octavo.bench.data import Load, even, sharegpt_file, sharegpt_like
from octavo.bench.load import Outcome, Pace, run_load
from octavo.bench.report import Row, row
from octavo.bench.stats import mean, percentile

Dataset = Literal["random", "sharegpt"]
Endpoint = Literal["completions", "chat"]


class ServeBenchOptions(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where to send, what, and at which pace."""

    base_url: Annotated[str, doc("Address of the server.")] = "http://127.0.0.1:8000"
    api_key: Annotated[str | None, doc("Key sent as a bearer token.")] = None
    model: Annotated[str | None, doc("Model to ask for. Unset: the first that the server names.")] = None
    endpoint: Annotated[Endpoint, doc("completions sends token ids, chat sends text.")] = "completions"
    dataset_name: Annotated[Dataset, doc("random: even lengths; sharegpt: lengths as in people's chats.")] = "random"
    dataset_path: Annotated[str | None, doc("A ShareGPT JSON file. Unset: its lengths, random tokens.")] = None
    num_prompts: Annotated[int, doc("Requests in all.", ge=1, le=1_000_000)] = 64
    num_warmups: Annotated[int, doc("Requests sent before, which do not count.", ge=0, le=10_000)] = 1
    random_input_len: Annotated[int, doc("Prompt tokens of the random set.", ge=1)] = 128
    random_output_len: Annotated[int, doc("Output tokens of the random set.", ge=1)] = 64
    random_range_ratio: Annotated[float, doc("Lengths lie within this share of those given.", ge=0, le=1)] = 0.0
    request_rate: (
        Annotated[float, doc("Requests a second, sent at Poisson times. Unset: all at once.", gt=0)] | None
    ) = None
    burstiness: Annotated[float, doc("1 is Poisson; below 1 comes in bursts, above 1 more evenly.", gt=0)] = 1.0
    max_concurrency: Annotated[int, doc("Most requests at a time.", ge=1)] | None = None
    ignore_eos: Annotated[bool, doc("Generate to the full length whatever the model says.")] = True
    temperature: Annotated[float, doc("Randomness of the answers.", ge=0, le=2)] = 0.0
    seed: Annotated[int, doc("Seed of data and arrival times.", ge=0)] = 0
    output_json: Annotated[str | None, doc("File for the numbers, besides the results folder.")] = None
    result_dir: Annotated[str, doc("Folder of results by machine and day; empty for none.")] = "benchmarks/results"


def load_of(options: ServeBenchOptions) -> Load:
    """The requests that the options describe."""
    if options.dataset_name == "sharegpt":
        if options.dataset_path:
            return sharegpt_file(options.dataset_path, options.num_prompts, seed=options.seed)
        return sharegpt_like(options.num_prompts, seed=options.seed)
    if options.dataset_path:
        raise ConfigError("--dataset-path goes with --dataset-name sharegpt")
    return even(
        options.num_prompts,
        options.random_input_len,
        options.random_output_len,
        seed=options.seed,
        spread=options.random_range_ratio,
    )


def body_of(options: ServeBenchOptions, model: str, prompt: list[int] | str, length: int) -> dict[str, Any]:
    """One request's JSON. A chat cannot carry token ids, so it gets as many short words."""
    common = {"model": model, "max_tokens": length, "temperature": options.temperature, "stream": True}
    common |= {"ignore_eos": options.ignore_eos, "stream_options": {"include_usage": True}}
    if options.endpoint == "completions":
        return {**common, "prompt": prompt}
    text = prompt if isinstance(prompt, str) else " ".join(f"w{token}" for token in prompt[: max(1, len(prompt) // 4)])
    return {**common, "messages": [{"role": "user", "content": text}]}


def measure(options: ServeBenchOptions, model: str) -> tuple[list[Row], dict[str, Any]]:
    """Send the load and sum up. Raises EngineError when no request was served."""
    from tqdm import tqdm  # here, so that help does not wait for it

    load = load_of(options)
    bodies = [body_of(options, model, prompt, length) for prompt, length in zip(load.prompts, load.output_lens)]
    path = "/v1/completions" if options.endpoint == "completions" else "/v1/chat/completions"
    url = options.base_url.rstrip("/").removesuffix("/v1") + path
    headers = {"Authorization": f"Bearer {options.api_key}"} if options.api_key else None
    pace = Pace(options.request_rate or math.inf, options.burstiness, options.max_concurrency, options.seed)
    if options.num_warmups:
        warm = even(options.num_warmups, options.random_input_len, 2, seed=options.seed + 1_000_003)
        warm_bodies = [body_of(options, model, prompt, 2) for prompt in warm.prompts]
        asyncio.run(run_load(url, warm_bodies, Pace(), headers=headers))
    with tqdm(total=len(bodies), desc="requests", unit="req", file=sys.stderr) as bar:
        outcomes, seconds = asyncio.run(run_load(url, bodies, pace, headers=headers, on_done=lambda _: bar.update()))
    errors = [outcome.error for outcome in outcomes if outcome.error]
    if len(errors) == len(outcomes):
        raise EngineError(f"all {len(errors)} requests failed; the first: {errors[0]}")
    return rows_of(outcomes, seconds, _name(options)), {
        "model": model.rpartition("/")[2],
        "failed": len(errors),
        "errors": errors[:5],
    }


def rows_of(outcomes: list[Outcome], seconds: float, name: str) -> list[Row]:
    """Rates over the whole run, and the spread of each time that a client feels."""
    good = [outcome for outcome in outcomes if outcome.error is None]
    rows = [
        row(f"{name}-completed", f"{name}, requests served", len(good), "requests", limit=len(outcomes)),
        row(f"{name}-requests-s", f"{name}, requests", len(good) / seconds, "req/s"),
        row(f"{name}-output-tok-s", f"{name}, output", sum(o.tokens for o in good) / seconds, "tok/s"),
        row(
            f"{name}-total-tok-s",
            f"{name}, prompts and output",
            sum(o.tokens + o.prompt_len for o in good) / seconds,
            "tok/s",
        ),
    ]
    times = {
        "ttft": ("time to first token", [o.ttft for o in good]),
        "tpot": ("time per output token", [o.tpot for o in good if not math.isnan(o.tpot)]),
        "itl": ("between pieces of text", [gap for o in good for gap in o.itl]),
        "e2e": ("whole answer", [o.e2e for o in good]),
    }
    for key, (what, values) in times.items():
        if values:
            rows.append(row(f"{name}-{key}-mean-ms", f"{name}, {what}, mean", 1e3 * mean(values), "ms"))
            rows.append(row(f"{name}-{key}-p50-ms", f"{name}, {what}, median", 1e3 * percentile(values, 50), "ms"))
            rows.append(row(f"{name}-{key}-p99-ms", f"{name}, {what}, p99", 1e3 * percentile(values, 99), "ms"))
    return rows


def _name(options: ServeBenchOptions) -> str:
    data = f"{options.random_input_len}-{options.random_output_len}" if options.dataset_name == "random" else "sharegpt"
    pace = (
        f"rate-{options.request_rate:g}" if options.request_rate else f"concurrency-{options.max_concurrency or 'all'}"
    )
    return f"http-{data}-{pace}"
