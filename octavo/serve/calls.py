"""What a handler is given and gives back."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import ParamSpec, TypeVar

import msgspec
from msgspec import Struct
from starlette.types import Receive, Scope, Send

from octavo.base.config import LimitsConfig, OctavoConfig
from octavo.base.errors import ConfigError, EngineError, NotFound, Unavailable
from octavo.base.wire import EngineStats
from octavo.engine.life import Survival
from octavo.serve.auth import Caller
from octavo.serve.auth import Scope as Access
from octavo.serve.decode import Schema
from octavo.serve.errors import Envelope, openai_envelope
from octavo.serve.facts import build_facts, cache_facts
from octavo.serve.generate import Engine
from octavo.serve.jobs import Jobs
from octavo.serve.journey import Journey
from octavo.serve.keys import KeyRing
from octavo.serve.limits import SMALL_BODY, Limits
from octavo.serve.metrics import Metrics
from octavo.serve.quota import Meter, Quotas
from octavo.serve.record import Recorder
from octavo.serve.store import Stores
from octavo.serve.turns import Listener
from octavo.text.request import TextProcessor

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T", bound=Struct)
Header = tuple[bytes, bytes]

TEXT_THREADS = 4
STILL_S = 60.0  # a long prompt's step on a CPU takes seconds; a minute is a fault
MAX_NAME = 256  # what a request's model may have (openai/schema.py)
INLINE_BYTES = 2 << 10  # a body this small is tokenized within a millisecond: a thread would cost more


@dataclass(frozen=True)
class Backend:
    """The parts that exist once a model is loaded."""

    engine: Engine
    text: TextProcessor
    phases: dict[str, float] = field(default_factory=dict)  # seconds of each phase of the start, the engine's beside


class Service:
    """One server: its configuration, its backend when there is one, its counts."""

    def __init__(self, config: OctavoConfig, limits: Limits) -> None:
        self.config = config
        self.limits = limits
        self.started_s = int(time.time())
        self._begin = time.monotonic()
        self.names = list(config.engine.model.served_model_name) or [_public_name(config.engine.model.model)]
        for name in self.names:
            if not 0 < len(name) <= MAX_NAME or not name.isprintable():
                raise ConfigError(f"--served-model-name takes 1 to {MAX_NAME} printable characters, got {name[:80]!r}")
        compat = config.serve.metrics_compat == "vllm"
        self.metrics = Metrics(self.names[0], self.stats, self.survival, compat=compat)
        self.recorder = Recorder(self.metrics, config.serve)
        self.draining = False
        self.endpoints: Sequence[Endpoint] = ()
        self.jobs = Jobs()
        self.keys = KeyRing(config.serve.api_key, config.serve.api_key_file)
        self.quotas = Quotas()
        self.stores = Stores(config.serve)
        self.resting = asyncio.Lock()  # one falls asleep or wakes at a time
        self.batch_slots = asyncio.Semaphore(config.serve.batch_concurrency)
        self._backend: Backend | None = None
        self._pool = ThreadPoolExecutor(TEXT_THREADS, thread_name_prefix="octavo-text")

    def attach(self, backend: Backend) -> None:
        """From here on requests are served."""
        self._backend = backend
        backend.engine.on_step = self.metrics.step
        phases = {**backend.phases, **backend.engine.ready.phases, "total": round(time.monotonic() - self._begin, 3)}
        self.metrics.started(phases, cache_facts(self.config.engine, backend.engine.ready), build_facts())

    @property
    def backend(self) -> Backend:
        """Unavailable while the model loads, the server drains or the engine is gone."""
        if self._backend is None:
            raise Unavailable("The model is still loading.")
        if self.draining:
            raise Unavailable("The server is shutting down.")
        self._backend.engine.check()
        return self._backend

    @property
    def still_s(self) -> float:
        """Seconds for which the engine has had work and done no step."""
        return self._backend.engine.still_s if self._backend else 0.0

    @property
    def moving(self) -> bool:
        """False while the engine has work and has done no step for a long time."""
        return self.still_s < STILL_S

    @property
    def loading(self) -> bool:
        """Whether there is no model yet."""
        return self._backend is None

    @property
    def restarting(self) -> bool:
        """Whether requests wait for the engine's next process."""
        return self._backend is not None and self._backend.engine.restarting

    @property
    def cause_of_death(self) -> str | None:
        """Why the engine is gone for good; None while it is not."""
        try:
            if self._backend is not None:
                self._backend.engine.check()
        except EngineError as error:
            return str(error)
        return None

    @property
    def alive(self) -> bool:
        """False only when the engine is gone for good."""
        return self.cause_of_death is None

    def survival(self) -> Survival:
        """What the engine has lived through."""
        return self._backend.engine.survival if self._backend else Survival()

    @property
    def asleep(self) -> int:
        """The level at which the engine sleeps; 0: it is awake."""
        return self.stats().asleep

    @property
    def wakes_by_itself(self) -> bool:
        """Whether a request wakes an engine that sleeps."""
        return self.config.engine.scheduler.wake_on_request

    def stats(self) -> EngineStats:
        """The engine's figures; zeros while there is none."""
        return self._backend.engine.stats if self._backend else EngineStats()

    def meter_of(self, owner: str, tenant: str) -> Meter:
        """Counts a request that goes on without its caller against the caller's key."""
        return self.quotas.meter(Caller(tenant, owner, self.keys.limits_of(owner)))

    def check_model(self, name: str | None) -> str:
        """The name to report. NotFound for a model that is not served here."""
        if name is None:
            return self.names[0]
        if name not in self.names:
            known = ", ".join(self.names[:4])
            raise NotFound(
                f"The model {name[:80]!r} does not exist here. Known: {known[:160]}.",
                param="model",
                code="model_not_found",
            )
        return name

    async def off_loop(self, size: int, call: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Runs `call` in a thread unless its input of `size` bytes is small enough for the event loop."""
        if size <= INLINE_BYTES:
            return call(*args, **kwargs)
        with self.limits.held(size):
            return await asyncio.get_running_loop().run_in_executor(self._pool, partial(call, *args, **kwargs))

    def close(self) -> None:
        """Lets the threads, the stores and the traces go."""
        self.recorder.close()
        self.stores.close()
        self._pool.shutdown(wait=False, cancel_futures=True)


@dataclass
class Call:
    """One HTTP request on its way through a handler."""

    service: Service
    scope: Scope
    receive: Receive
    send: Send
    request_id: str
    tenant: str
    arrival: float = field(default_factory=time.monotonic)
    headers: list[Header] = field(default_factory=list)  # for the answer, gathered on the way
    body_bytes: int = 0
    owner: str = ""  # whose stored things it may see
    background: bool = False  # nobody waits for it: it yields to all others
    journey: Journey = field(default_factory=Journey)  # shared by all that one HTTP request calls on the way
    meter: Meter = field(default_factory=Meter)  # of the caller's key
    timeout_s: float | None = None  # what the caller gives it
    listener: Listener | None = None  # told a chat's answer instead of the client

    @property
    def limits(self) -> LimitsConfig:
        """What one request may hold."""
        return self.service.config.serve.limits

    @property
    def time_limit_s(self) -> float:
        """Seconds from its arrival after which it ends."""
        most = self.service.config.serve.request_timeout
        return most if self.timeout_s is None else min(self.timeout_s, most)

    async def read(self, schema: Schema[T]) -> tuple[T, dict[str, msgspec.Raw]]:
        """The checked body and the fields it has beyond the schema."""
        body = await self.service.limits.read_body(self.scope, self.receive)
        self.body_bytes = len(body)
        self.journey.read = time.monotonic()
        if len(body) <= SMALL_BODY:
            return schema.decode(body, self.limits)
        return await self.service.off_loop(len(body), schema.decode, body, self.limits)

    def prepared(self, model: str) -> None:
        """Its prompt is made of tokens now, for the model of that name."""
        journey, now = self.journey, time.monotonic()
        journey.model, journey.prepared = model, now
        self.service.metrics.tokenize.observe(now - (journey.read or journey.arrival))


@dataclass(frozen=True)
class Reply:
    """A whole answer."""

    body: bytes
    status: int = 200
    kind: bytes = b"application/json"
    headers: tuple[Header, ...] = ()


Handler = Callable[[Call], Awaitable[Reply | None]]  # None: the handler has sent its answer itself


@dataclass(frozen=True)
class Endpoint:
    """One line of the table of routes. `scope` has no default: a route cannot forget to say who may call it."""

    path: str
    methods: tuple[str, ...]
    scope: Access
    handler: Handler
    body: type[Struct] | None = None  # of a JSON request, for the API's description
    envelope: Envelope = openai_envelope

    def __post_init__(self) -> None:
        if not isinstance(self.scope, Access):
            raise TypeError(f"{self.path} does not say who may call it")


def json_reply(value: object, status: int = 200) -> Reply:
    """`value` as a JSON answer."""
    return Reply(msgspec.json.encode(value), status)


def _public_name(model: str) -> str:
    """The last part of a path, the whole of a hub name: a client must not learn the server's folders."""
    name = model.rstrip("/")
    if name.startswith(("/", ".", "~")) or name.count("/") > 1 or name.endswith(".gguf"):
        name = name.rsplit("/", 1)[-1].removesuffix(".gguf")
    return name or "model"
