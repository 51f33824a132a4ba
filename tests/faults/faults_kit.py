"""Engines that fail on purpose, in processes of their own, and requests whose whole answers are known beforehand."""

import asyncio
import os
import sys
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

HERE = Path(__file__).parent
ENGINE = HERE.parent / "unit" / "engine"
sys.path[:0] = [str(HERE), str(ENGINE)]

import engine_fakes as fakes  # noqa: E402
import msgspec  # noqa: E402

from octavo.base.config import RecoveryConfig  # noqa: E402
from octavo.base.wire import EngineRequest, Sampling, TokenOutput, Vocabulary  # noqa: E402
from octavo.engine.assemble import Engine, Phases, finish  # noqa: E402
from octavo.engine.client import EngineClient  # noqa: E402
from octavo.engine.core import Core  # noqa: E402
from octavo.engine.resolve import resolve  # noqa: E402
from octavo.grammar.spec import RIDER, GrammarSpec, encode_spec  # noqa: E402
from octavo.testing.fake_executor import FakeExecutor  # noqa: E402
from octavo.testing.faults import Fault, FaultyExecutor, lay_over  # noqa: E402

VOCAB = 200
VOCABULARY = Vocabulary([bytes([i]) for i in range(VOCAB - 1)] + [b"<|eos|>"], [VOCAB - 1], [VOCAB - 1])
SCHEMA = (
    '{"type":"object","properties":{"a":{"type":"integer"},"b":{"type":"string","maxLength":9}},"required":["a","b"]}'
)


def assemble(config: fakes.EngineConfig) -> Engine:
    """An engine over FakeExecutor; ``faults`` in the model's name is a list of Fault."""
    given = msgspec.json.decode(config.model.model)
    faults = msgspec.convert(given.pop("faults", []), list[Fault])
    executor = FaultyExecutor(FakeExecutor(VOCAB, **given), faults)
    resolved = resolve(config, fakes.ARCH, fakes.MACHINE)
    engine = finish(config, resolved, fakes.ARCH.kv_specs(), VOCAB, executor, Phases())
    lay_over(engine.core, faults)
    return engine


def assemble_once(config: fakes.EngineConfig) -> Engine:
    """Starts well the first time; then it does not, as often as the ledger in the model's name says."""
    given = msgspec.json.decode(config.model.model)
    ledger, bad = Path(given.pop("ledger")), given.pop("bad_starts")
    with ledger.open("ab") as file:
        file.write(b"x")
        starts = file.tell()
    if 1 < starts <= 1 + bad:
        raise RuntimeError("no memory yet")
    named = msgspec.structs.replace(config.model, model=msgspec.json.encode(given).decode())
    return assemble(msgspec.structs.replace(config, model=named))


async def launch(
    faults: list[Fault] | None = None,
    *,
    recovery: RecoveryConfig | None = None,
    assembly: str = "faults_kit:assemble",
    **values: object,
) -> EngineClient:
    """A client of such an engine, which knows what the tokens stand for."""
    paths = [str(HERE), str(ENGINE)]
    os.environ["PYTHONPATH"] = os.pathsep.join(paths)
    told = [msgspec.to_builtins(fault) for fault in faults or []]
    client = await EngineClient.launch(
        fakes.config(faults=told, **values),
        recovery=recovery or RecoveryConfig(),
        assembly=assembly,
        log_level=os.environ.get("OCTAVO_FAULTS_LOG", "critical"),
    )
    client.provide(lambda: VOCABULARY)
    return client


@dataclass
class Told:
    """All that came back for one request."""

    tokens: list[int] = field(default_factory=list)
    finish: str | None = None
    error: str | None = None
    logprobs: bytes = b""
    prompt_logprobs: bytes = b""

    def take(self, output: TokenOutput) -> None:
        assert self.finish is None, "it goes on after its end"
        self.tokens += output.tokens
        self.finish, self.error = output.finish, output.error
        self.logprobs += output.logprobs
        self.prompt_logprobs += output.prompt_logprobs


async def read(stream: object, told: Told | None = None) -> Told:
    """To the end."""
    told = told or Told()
    async for output in stream:  # type: ignore[attr-defined]
        told.take(output)
    return told


def mixed(random: Random, count: int, *, longest: int = 60, structured: bool = True) -> list[EngineRequest]:
    """Greedy and seeded ones, log-probabilities, stops, least lengths, penalties, structured output."""
    requests = []
    for i in range(count):
        prompt = [random.randrange(VOCAB - 1) for _ in range(random.choice([1, 3, 9, 40]))]
        max_tokens = random.randrange(longest // 2, longest)
        sampling = Sampling(
            seed=random.randrange(1 << 60),
            max_tokens=max_tokens,
            min_tokens=random.choice([0, 0, 7]),
            temperature=random.choice([0.0, 1.0]),
            frequency_penalty=random.choice([0.0, 0.5]),
            eos_token_ids=random.choice([(), (VOCAB - 1,), (3, 4)]),
            logprobs=random.choice([-1, -1, 0, 3]),
            prompt_logprobs=random.choice([-1, -1, -1, 2]),
        )
        riders = {}
        if structured and i % 6 == 5:
            sampling = msgspec.structs.replace(sampling, eos_token_ids=(VOCAB - 1,), max_tokens=max(40, max_tokens))
            riders = {RIDER: encode_spec(GrammarSpec("json_schema", SCHEMA))}
        requests.append(EngineRequest(f"r{i}-{random.randrange(1 << 30)}", prompt, sampling, riders=riders))
    return requests


async def run(core: Core, requests: list[EngineRequest]) -> dict[str, Told]:
    """What each of them gets from an engine in this process."""
    told = {request.id: Told() for request in requests}
    for request in requests:
        core.add(request)
    while core.has_work:
        outputs = core.step()
        for output in outputs.each() if outputs else ():
            told[output.id].take(output)
        if outputs is None:
            await asyncio.sleep(0.001)
    return told


async def undisturbed(requests: list[EngineRequest]) -> dict[str, Told]:
    """What each of them must get, from an engine in this process to which nothing happens."""
    core = assemble(fakes.config(num_blocks=2000)).core
    core.provide(VOCABULARY)
    told = await run(core, requests)
    core.shutdown()
    assert all(each.finish in ("stop", "length") for each in told.values())
    return told


async def idle(client: EngineClient, seconds: float = 10.0) -> None:
    """Nothing runs, nothing waits, no block is owned, no stream is open."""
    async with asyncio.timeout(seconds):
        while True:
            stats = await client.control("stats")
            if stats["running"] == stats["waiting"] == stats["kv_usage"] == len(client._journal) == 0:
                return
            await asyncio.sleep(0.02)
