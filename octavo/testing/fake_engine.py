"""An engine client without an engine: deterministic tokens, latency and failures on demand.

The next token is a pure function of all tokens before it, so streams can be compared with whole answers.
It counts what it was given and what it let go, so that a test can see a leak.
"""

import asyncio
import hashlib
import math
from collections.abc import AsyncIterator, Callable, Sequence

from octavo.base.errors import EngineDead, EngineError, Overloaded, asleep
from octavo.base.scores import TokenLogprobs, write
from octavo.base.wire import EngineRequest, EngineStats, Ready, Sampling, TokenOutput
from octavo.engine.life import Survival
from octavo.engine.stream import Mailbox, Stream
from octavo.sched.finish import refused

NextToken = Callable[[Sequence[int]], int]


class FakeStream:
    """Outputs of one request. `close` aborts it; closing twice, or after the end, does nothing."""

    def __init__(self, engine: "FakeEngine", request: EngineRequest) -> None:
        self._engine = engine
        self._request = request
        self._outputs = engine.outputs(request)
        self._done = False
        self._closed = asyncio.Event()

    def __aiter__(self) -> "FakeStream":
        return self

    async def __anext__(self) -> TokenOutput:
        if self._done:
            raise StopAsyncIteration
        self._engine.check()
        output = await anext(self._outputs)
        if self._done:  # closed meanwhile
            raise StopAsyncIteration
        if output.finish is not None:
            self._end()
        return output

    def listen(self, listener: Callable[[TokenOutput], bool]) -> None:
        """All outputs go through the iterator."""
        del listener

    def close(self) -> None:
        """Aborts the request unless it has ended."""
        if not self._done:
            self._engine.aborted.append(self._request.id)
            self._end()

    def _end(self) -> None:
        self._done = True
        self._engine.open.discard(self._request.id)


class FakeEngine:
    """The surface of EngineClient. Attributes may be changed while it runs.

    `delay_s`: time of one step; `step_tokens`: tokens a step yields; `fail_after`: ends each request with an error
    after so many tokens; `mailed`: its streams are those of a real client; `dead`: behaves like a client whose engine
    process is gone; `full`: refuses like a full queue.
    """

    def __init__(self, vocab_size: int = 512, max_model_len: int = 2048, next_token: NextToken | None = None) -> None:
        self.ready = Ready(max_model_len, vocab_size, 1024, 16, 64, 2048, [])
        self.next_token = next_token or self._pseudo_random
        self.delay_s = 0.0
        self.step_tokens = 1
        self.fail_after: int | None = None
        self.fail_code = 500
        self.fail_param: str | None = None
        self.fail_name: str | None = None
        self.mailed = False
        self.dead = False
        self.full = False
        self.cached_tokens = 0
        self.asleep = 0  # the level
        self.refusal = ""  # why it will not fall asleep
        self.commands: list[tuple[str, dict[str, object]]] = []
        self.requests: list[EngineRequest] = []
        self.aborted: list[str] = []
        self.open: set[str] = set()
        self.closed = False
        self.still_s = 0.0
        self.on_step: Callable[[EngineStats], None] = lambda _: None
        self.restarting = False
        self.survival = Survival()
        self._generated = 0
        self._posts: set[asyncio.Task[None]] = set()

    @property
    def stats(self) -> EngineStats:
        """Running sequences and tokens made; the rest is made up."""
        return EngineStats(running=len(self.open), generation_tokens=self._generated, kv_usage=0.25, asleep=self.asleep)

    def check(self) -> None:
        """EngineDead while `dead`."""
        if self.dead:
            raise EngineDead("the engine's process is gone")

    def submit(self, request: EngineRequest) -> FakeStream | Stream:
        """Starts a sequence. Raises EngineDead or Overloaded as told to."""
        self.check()
        if self.full:
            raise Overloaded("The queue is full.", retry_after_s=2.0)
        self.requests.append(request)
        self.open.add(request.id)
        if self.mailed:
            mailbox = Mailbox()
            self._posts.add(asyncio.create_task(self._post(request, mailbox)))
            return Stream(request.id, mailbox, lambda id: self.abort([id]))
        return FakeStream(self, request)

    async def _post(self, request: EngineRequest, mailbox: Mailbox) -> None:
        spoken = False
        try:
            async for output in self.outputs(request):
                if mailbox.finished:
                    return
                if spoken and output.finish is None:
                    mailbox.put_tokens(request.id, output.tokens, output.logprobs)
                else:
                    mailbox.put(output)
                spoken = True
        except EngineDead as error:
            mailbox.fail(str(error))
        finally:
            self.open.discard(request.id)

    def abort(self, ids: Sequence[str]) -> None:
        """Notes the ids as aborted."""
        self.aborted.extend(ids)
        self.open.difference_update(ids)

    async def control(self, command: str, *, timeout_s: float = 1.0, **args: object) -> object:
        """The commands of falling asleep and waking, without any memory. Notes all that come."""
        del timeout_s
        self.commands.append((command, args))
        self.check()
        match command:
            case "stats":
                return {"running": len(self.open)}
            case "sleep":
                if self.refusal:
                    raise EngineError(self.refusal)
                self.asleep = int(str(args["level"]))
                return {"level": self.asleep, "freed_bytes": 1 << 20, "seconds": 0.001}
            case "wake_up":
                self.asleep = 0 if args["tags"] in ("", "weights,kv_cache") else self.asleep
                return not self.asleep
            case "is_sleeping":
                return self.asleep > 0
        return True

    async def close(self) -> None:
        """Notes that it was closed."""
        self.closed = True

    async def outputs(self, request: EngineRequest) -> AsyncIterator[TokenOutput]:
        """What the steps of one request yield."""
        rules, line, made = request.sampling, list(request.tokens), 0
        prompt_logprobs = self._prompt_logprobs(request) if rules.prompt_logprobs >= 0 else b""
        cached = min(self.cached_tokens, len(request.tokens) - 1)
        while True:
            await asyncio.sleep(self.delay_s)
            self.check()
            if self.asleep and not made:
                yield refused(request.id, asleep("the engine is asleep; POST /wake_up wakes it"))
                return
            if self.fail_after is not None and made >= self.fail_after:
                text = "The engine failed to compute a step."
                yield TokenOutput(
                    request.id,
                    [],
                    finish="error",
                    error=text,
                    error_code=self.fail_code,
                    error_param=self.fail_param,
                    error_name=self.fail_name,
                )
                return
            tokens: list[int] = []
            finish = stop_token = None
            while finish is None and len(tokens) < self.step_tokens:
                token = self.next_token(line)
                line.append(token)
                tokens.append(token)
                made += 1
                if token in rules.stop_token_ids or (token in rules.eos_token_ids and made > rules.min_tokens):
                    finish, stop_token = "stop", token
                elif made >= rules.max_tokens:
                    finish = "length"
            self._generated += len(tokens)
            self.on_step(self.stats)
            logprobs = write([self._logprob(token, rules) for token in tokens]) if rules.logprobs >= 0 else b""
            yield TokenOutput(
                request.id,
                tokens,
                finish=finish,
                stop_token=stop_token,
                logprobs=logprobs,
                prompt_logprobs=prompt_logprobs,
                cached_tokens=cached,
            )
            prompt_logprobs = b""
            if finish:
                return

    def _prompt_logprobs(self, request: EngineRequest) -> bytes:
        count = request.sampling.prompt_logprobs
        return write([None, *(self._position(token, self._near(token, count)) for token in request.tokens[1:])])

    def _logprob(self, token: int, rules: Sampling) -> TokenLogprobs:
        return self._position(token, list(rules.logprob_token_ids) or self._near(token, rules.logprobs))

    def _near(self, token: int, count: int) -> list[int]:
        return [(token + step) % self.ready.vocab_size for step in range(count)]

    def _position(self, token: int, ids: list[int]) -> TokenLogprobs:
        return TokenLogprobs(token, -0.5, 1, ids, [-0.5 - math.log1p(step) for step in range(len(ids))])

    def _pseudo_random(self, tokens: Sequence[int]) -> int:
        digest = hashlib.blake2b(",".join(map(str, tokens)).encode(), digest_size=4).digest()
        return int.from_bytes(digest, "big") % self.ready.vocab_size
