"""`octavo plan MODEL`: what fits, worked out from configs alone. No weights are loaded and torch is not imported."""

import json
from dataclasses import dataclass
from typing import Annotated, Any

from msgspec import Meta, Struct, field

from octavo.base.config import EngineConfig, Resolved, doc
from octavo.base.errors import ConfigError
from octavo.base.human import format_bytes
from octavo.cli.command import Command, need_model

GIB = 1 << 30


class PlanOptions(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What to plan for."""

    memory: (
        Annotated[
            int, doc("Memory of the device, as 24GiB. Unset: what this machine has free.", ge=1 << 20, le=1 << 50)
        ]
        | None
    ) = None
    length: Annotated[
        list[Annotated[int, Meta(ge=1, le=1 << 24)]], doc("Lengths, in tokens, at which to count requests.")
    ] = field(default_factory=lambda: [1024, 4096, 16_384, 65_536])
    json: Annotated[bool, doc("Print JSON instead of a table.")] = False


@dataclass(frozen=True, slots=True)
class Plan:
    """What would be where. Sizes in bytes."""

    facts: Any  # octavo.platform.base.Facts
    resolved: Resolved
    parameters: int
    file_bytes: int
    weight_bytes: int  # in memory
    packed: bool  # kept in the checkpoint's own formats rather than in the type that is computed in
    kv_dtype: str
    working_bytes: int  # estimate
    kv_bytes: int  # what is left for the KV cache
    sizing: Any | None  # octavo.engine.sizing.Sizing; None when nothing fits
    problem: str | None  # why it does not


def make_plan(options: PlanOptions, engine: EngineConfig) -> Plan:
    """Read the model's config, settle types and limits, and share out the memory."""
    from octavo.engine import fit, host_form, sizing
    from octavo.engine.resolve import resolve
    from octavo.weights.facts import read_configs

    files = read_configs(engine.model)
    facts = device_facts(engine.device.device, options.memory)
    resolved = resolve(engine, files.arch, facts, file_format=files.format)
    parameters = files.arch.num_parameters()
    weight_bytes = host_form.weight_bytes(engine, resolved, files)
    cache = host_form.kv_dtype(engine, resolved, files)
    specs = files.arch.kv_specs()
    block = sizing.one_block_bytes(specs, resolved.block_size, cache)
    asked = sizing.asked_bytes(engine.cache, resolved.device, block)

    def left_for(settings: Resolved) -> int:
        working = working_bytes(files.arch, settings)
        return kv_bytes(facts, engine, settings, specs, weight_bytes, working, cache) if asked is None else asked

    def size(settings: Resolved) -> Any:
        return sizing.size(
            specs,
            dtype=cache,
            block_size=settings.block_size,
            capacity=left_for(settings),
            max_model_len=settings.max_model_len,
            remedy=fit.remedy(engine, settings),
        )

    sized, problem = None, None
    try:
        fitted = fit.choose(engine, resolved, size)
        resolved, sized = fitted.resolved, fitted.sized
    except ConfigError as error:
        problem = str(error)
    working = working_bytes(files.arch, resolved)
    left = left_for(resolved)
    packed = host_form.packs(engine, resolved, files)
    return Plan(
        facts, resolved, parameters, files.weight_bytes, weight_bytes, packed, cache, working, left, sized, problem
    )


@dataclass(frozen=True, slots=True)
class _Memory:
    """Stands in for a platform once the weights are in place."""

    free: int
    total: int

    def memory(self) -> tuple[int, int]:
        return self.free, self.total


def kv_bytes(
    facts: Any, engine: EngineConfig, resolved: Resolved, specs: Any, weights: int, working: int, dtype: str
) -> int:
    """What the worker would give the KV cache, by its own rules (worker/capacity.py)."""
    from octavo.base.specs import cache_specs, group_layers
    from octavo.engine.sizing import DTYPE_BYTES
    from octavo.worker import capacity

    free, total = facts.free_memory - weights, facts.total_memory
    if resolved.device == "cpu":
        host: Any = _Memory(max(0, free), total)
        return int(capacity.on_host(host, resolved, group_layers(cache_specs(specs, dtype)), DTYPE_BYTES[dtype]))
    return int(capacity.share_out(total, free, weights, working, engine.cache.gpu_memory_utilization))


def working_bytes(arch: Any, resolved: Resolved) -> int:
    """An estimate of what a full step needs beside weights and cache: activations of one layer, and logits.

    The engine measures the true figure when it starts.
    """
    from octavo.engine.sizing import DTYPE_BYTES

    widest = max(
        2 * layer.mlp.intermediate_size
        + (2 * layer.attention.num_heads + 2 * layer.attention.num_kv_heads) * layer.attention.head_dim
        for layer in arch.layers
    )
    activations = resolved.max_num_batched_tokens * (4 * arch.hidden_size + widest) * DTYPE_BYTES[resolved.dtype]
    logits = 3 * 4 * resolved.max_num_seqs * arch.vocab_size  # fp32: as computed, as changed, as probabilities
    return int(activations + logits)


def device_facts(device: str, memory: int | None) -> Any:
    """Facts of the device, asked of the driver and the system; `memory` stands in for what they say of memory."""
    from octavo.bench.hardware import gpus, machine
    from octavo.platform.base import Facts

    found = gpus() if device in ("auto", "cuda") else []
    here = machine()
    if device == "cuda" or found:
        if not found and memory is None:
            raise ConfigError("this machine has no GPU; say how much memory the planned one has: --memory 24GiB")
        capability = found[0].capability if found else (8, 0)
        return Facts(
            device="cuda",
            name=found[0].name if found else "a GPU that is not here",
            total_memory=memory or found[0].total_memory,
            free_memory=memory or found[0].free_memory,
            cores=here.cores,
            dtypes=("bfloat16", "float16", "float32") if capability >= (8, 0) else ("float16", "float32"),
            asynchronous=True,
            capability=capability,
        )
    return Facts(
        device="cpu",
        name=here.cpu,
        total_memory=memory or here.memory,
        free_memory=memory or here.available,
        cores=here.cores,
        dtypes=("float32", "bfloat16", "float16"),
        asynchronous=False,
    )


def describe(plan: Plan, options: PlanOptions) -> dict[str, Any]:
    """The plan as plain data, the form of ``--json``."""
    facts, sized = plan.facts, plan.sizing
    result: dict[str, Any] = {
        "device": facts.device,
        "device_name": facts.name,
        "memory_bytes": facts.total_memory,
        "free_bytes": facts.free_memory,
        "dtype": plan.resolved.dtype,
        "parameters": plan.parameters,
        "file_bytes": plan.file_bytes,
        "weight_bytes": plan.weight_bytes,
        "weights_packed": plan.packed,
        "kv_cache_dtype": plan.kv_dtype,
        "working_bytes": plan.working_bytes,
        "kv_cache_bytes": max(0, plan.kv_bytes),
        "fits": sized is not None,
        "notes": plan.resolved.notes,
    }
    if sized is None:
        return {**result, "problem": plan.problem}
    lengths = sorted({*(length for length in options.length if length < sized.max_model_len), sized.max_model_len})
    return {
        **result,
        "kv_bytes_per_token": sized.bytes_per_token,
        "kv_tokens": sized.tokens(),
        "kv_blocks": sized.usable_blocks,
        "block_size": plan.resolved.block_size,
        "max_model_len": sized.max_model_len,
        "concurrency": {str(length): round(sized.concurrency(length), 2) for length in lengths},
        "notes": [*plan.resolved.notes, *sized.notes],
    }


def page(facts: dict[str, Any], model: str) -> str:
    """The plan for people to read."""
    form = "packed" if facts["weights_packed"] else f"in {facts['dtype']}"
    lines = [
        f"{model}: {facts['parameters'] / 1e6:,.0f} M parameters",
        "",
        f"  device        {facts['device']}: {facts['device_name']}, {format_bytes(facts['free_bytes'])} free "
        f"of {format_bytes(facts['memory_bytes'])}",
        f"  weights       {format_bytes(facts['weight_bytes'])} {form} ({format_bytes(facts['file_bytes'])} of files)",
        f"  working room  {format_bytes(facts['working_bytes'])}, an estimate; the engine measures it",
    ]
    if not facts["fits"]:
        return "\n".join([*lines, "", f"Does not fit: {facts['problem']}"])
    lines += [
        f"  KV cache      {format_bytes(facts['kv_cache_bytes'])} in {facts['kv_cache_dtype']}: "
        f"{facts['kv_tokens']:,} tokens in {facts['kv_blocks']:,} blocks of {facts['block_size']}, "
        f"{format_bytes(facts['kv_bytes_per_token'])} a token",
        f"  context       {facts['max_model_len']:,} tokens",
        "",
        "  length in tokens   requests at once",
        *(f"  {int(length):>16,}   {count:>16,.1f}" for length, count in facts["concurrency"].items()),
        "",
        *(f"  {note}" for note in facts["notes"]),
    ]
    return "\n".join(lines)


def run(options: PlanOptions, engine: EngineConfig) -> int:
    """Print the plan; exit code 1 when the model does not fit."""
    need_model(engine, "plan MODEL")
    plan = make_plan(options, engine)
    facts = describe(plan, options)
    print(json.dumps(facts, indent=1) if options.json else page(facts, engine.model.model))
    return 0 if plan.sizing is not None else 1


COMMAND = Command(
    name="plan",
    summary="Say what fits in memory: weights, KV cache, context, requests at once. Loads no weights.",
    roots=(PlanOptions, EngineConfig),
    run=run,
    positional="model",
    example="octavo plan Qwen/Qwen3-8B --device cuda --memory 24GiB --length 8k",
)
