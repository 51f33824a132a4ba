"""The offline API: a model in this process, many prompts at once, results in order.

    llm = LLM("Qwen/Qwen2.5-0.5B-Instruct")
    for result in llm.generate(["Hello", "Once upon a time"], SamplingParams(max_tokens=32)):
        print(result.outputs[0].text)

Names and shapes are vLLM's.
"""

import gc
import itertools
import secrets
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, cast

from msgspec.structs import replace
from tqdm.auto import tqdm

from octavo.base.config import EngineConfig, Resolved
from octavo.base.errors import UserError
from octavo.base.lines import Lines
from octavo.base.params import SamplingParams
from octavo.base.wire import EngineStats, TokenOutput
from octavo.engine.batch import BatchRunner
from octavo.engine.inproc import InprocClient
from octavo.engine.interpreter import taking_turns
from octavo.engine.keywords import engine_config
from octavo.text.collect import Collector
from octavo.text.load import load_text
from octavo.text.parse.speech import Wish
from octavo.text.request import Limits, Prepared, TextProcessor
from octavo.text.tokenizer import Tokenizer
from octavo.text.told import (
    Logprob,  # noqa: F401 - for who imports it from here
    Position,
    WhenRead,
    told_of_prompt,
)
from octavo.text.tools import check_tools, choice_of

Prompt = str | Sequence[int] | Mapping[str, Any]
Message = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A function that the model calls. `arguments` is JSON text."""

    id: str
    name: str
    arguments: str


@dataclass
class CompletionOutput:
    """One continuation of a prompt. `stop_reason` is the stop string or token id that ended it, if one did; `error`
    says what went wrong where `finish_reason` is "error". The list `logprobs` is made when it is first read.

    Of a chat with tools, `text` is what is said to the user; the calls and the thoughts stand beside it.
    """

    index: int
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    cumulative_logprob: float | None = None
    logprobs: list[Position] | None = cast(Any, WhenRead())  # noqa: RUF009 - a descriptor, whose default is None
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    tool_calls: list[ToolCall] = field(default_factory=list)
    reasoning: str | None = None
    error: str | None = None

    def finished(self) -> bool:
        return self.finish_reason is not None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "logprobs": self.logprobs}  # without the tokenizer behind what nobody has read


@dataclass(slots=True)
class RequestOutput:
    """A prompt and its `n` continuations."""

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    prompt_logprobs: list[Position | None] | None
    outputs: list[CompletionOutput]
    finished: bool = False
    num_cached_tokens: int = 0


class LLM:
    """A model for offline use, by one thread. Keywords are the fields of the configuration, in vLLM's names.

    Raises ConfigError (unknown keyword, value out of bounds, a model that does not fit) and ModelFileError.
    """

    def __init__(self, model: str, *, tokenizer: str | None = None, **options: Any) -> None:
        options.setdefault("long_prefill_token_threshold", 0)  # nobody reads along
        config = engine_config(model=model, tokenizer=tokenizer, **options)
        with taking_turns():
            client = InprocClient.launch(config)
            try:
                files = client.engine.files
                assert files is not None
                limits = Limits(client.ready.max_model_len, client.ready.vocab_size)
                text = load_text(files, config.model).processor(limits)
                client.prepare()
            except BaseException:
                client.close()
                raise
        self._set_up(config, client, text)

    def _set_up(self, config: EngineConfig, client: InprocClient, text: TextProcessor) -> None:
        self.config = config
        self._client = client
        self._text = text
        if text.vocabulary is not None:
            client.provide(text.vocabulary)
        self._batch = BatchRunner(client, config.scheduler)
        self._name = secrets.token_hex(4)
        self._ids = itertools.count()

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool = True,
        priority: Sequence[int] | None = None,
    ) -> list[RequestOutput]:
        """Continue each prompt: a string, token ids, ``{"prompt": ...}`` or ``{"prompt_token_ids": ...}``.

        One SamplingParams for all, or one a prompt; none: the model's own defaults. All prompts are checked before
        any runs: raises UserError with the prompt's place in `param`. Raises EngineError if the device fails.
        """
        items = _as_list(prompts)
        params = self._params_for(items, sampling_params)
        order = _priorities(items, priority)
        jobs = []
        for index, (prompt, param) in enumerate(zip(items, params)):
            with _placed(f"prompts[{index}]", len(items)):
                given = _prompt_of(prompt)
                prepared = self._text.completion(given, param, request_id=self._new_id(), priority=order[index])
                jobs.append(_Job(prepared, given if isinstance(given, str) else None))
        return self._run(jobs, use_tqdm)

    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool = True,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: Sequence[Mapping[str, Any]] | None = None,
        tool_choice: str | Mapping[str, Any] | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
    ) -> list[RequestOutput]:
        """Answer one conversation or a list of them; messages are ``{"role": ..., "content": ...}``.

        With `tools`, in OpenAI's form, calls are found in the answers; `tool_choice` ``required`` or a function
        enforces one.
        """
        wish = _wish(tools, tool_choice)
        extra = chat_template_kwargs
        if extra is not None and not (isinstance(extra, Mapping) and all(isinstance(name, str) for name in extra)):
            raise UserError("chat_template_kwargs must be a dictionary of names", param="chat_template_kwargs")
        conversations = _conversations(messages)
        params = self._params_for(conversations, sampling_params)
        jobs = []
        for index, (conversation, param) in enumerate(zip(conversations, params)):
            with _placed(f"messages[{index}]", len(conversations)):
                prepared = self._text.chat(
                    conversation,
                    param,
                    request_id=self._new_id(),
                    tools=tools,
                    wish=wish,
                    add_generation_prompt=add_generation_prompt,
                    continue_final_message=continue_final_message,
                    template_args=extra,
                )
                jobs.append(_Job(prepared, prepared.collectors[0].prompt_text))
        return self._run(jobs, use_tqdm)

    def get_tokenizer(self) -> Tokenizer:
        return self._text.tokenizer

    def get_default_sampling_params(self) -> SamplingParams:
        """What `generate` uses when it is given none: the model's generation_config over the plain defaults."""
        return self._text.defaults.params()

    def reset_prefix_cache(self) -> bool:
        """Forget all cached prefixes."""
        return bool(self._client.control("reset_prefix_cache"))

    def sleep(self, level: int = 1, mode: str = "abort") -> None:
        """Give device memory back until `wake_up`: the KV cache, and the weights. Level 1 keeps those in host memory,
        level 2 reads the model's files again. `mode` is for what runs, which offline is nothing.

        Raises EngineError in one line where that cannot be.
        """
        self._client.control("sleep", level=level, mode=mode)

    def wake_up(self, tags: Sequence[str] | None = None) -> None:
        """Bring memory back: all, or that of ``weights`` or ``kv_cache`` alone. Raises EngineError."""
        self._client.control("wake_up", tags=",".join(tags or ()))

    def is_sleeping(self) -> bool:
        """Whether any memory is given back."""
        return bool(self._client.control("is_sleeping"))

    def close(self) -> None:
        """Free the device. Safe to call again."""
        self._client.close()

    def __enter__(self) -> "LLM":
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    @property
    def resolved(self) -> Resolved:
        """What start-up settled: device, types, limits."""
        return self._client.engine.resolved

    @property
    def stats(self) -> EngineStats:
        """Gauges and counters as of the last step. May be read from another thread."""
        return self._client.stats

    def _new_id(self) -> str:
        return f"{self._name}-{next(self._ids)}"

    def _params_for(
        self, items: Sequence[Any], given: SamplingParams | Sequence[SamplingParams] | None
    ) -> Sequence[SamplingParams]:
        if given is None:
            given = self.get_default_sampling_params()
        if isinstance(given, SamplingParams):
            return [given.typed()] * len(items)
        if not isinstance(given, Sequence) or not all(isinstance(one, SamplingParams) for one in given):
            raise UserError("sampling_params must be SamplingParams, or one a prompt", param="sampling_params")
        if len(given) != len(items):
            raise UserError(f"{len(items)} prompts but {len(given)} sampling_params", param="sampling_params")
        return [one.typed() for one in given]

    def _run(self, jobs: "list[_Job]", use_tqdm: bool) -> list[RequestOutput]:
        with _Progress(len(jobs), use_tqdm) as progress, _settled_heap(), taking_turns():
            reader = _Reader(jobs, progress)
            requests = [request for job in jobs for request in job.prepared.requests]
            self._batch.run(requests, reader.take, reader.take_tokens)
        return [job.result() for job in jobs]


@dataclass(slots=True)
class _Job:
    """One prompt on its way: its sequences, and how many of them still run."""

    prepared: Prepared
    prompt: str | None
    left: int = 0

    def __post_init__(self) -> None:
        self.left = len(self.prepared.requests)

    def result(self) -> RequestOutput:
        collectors = self.prepared.collectors
        first = collectors[0]
        return RequestOutput(
            request_id=self.prepared.requests[0].id,
            prompt=self.prompt,
            prompt_token_ids=list(self.prepared.prompt_tokens),
            prompt_logprobs=told_of_prompt(first.prompt_logprobs) if first.prompt_logprobs is not None else None,
            outputs=[_completion(collector) for collector in collectors],
            finished=self.left == 0,
            num_cached_tokens=max(collector.cached_tokens for collector in collectors),
        )


@contextmanager
def _settled_heap() -> Iterator[None]:
    """Inside, the collector passes over what was there before: a large heap costs tens of milliseconds a walk.

    A program that has frozen objects itself is left alone.
    """
    if gc.get_freeze_count():
        yield
        return
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


class _Reader:
    """Gives the outputs of a run to their collectors: at once where the text may end a sequence, else at its end."""

    def __init__(self, jobs: "list[_Job]", progress: "_Progress") -> None:
        self._progress = progress
        self._owners = {
            request.id: (job, collector)
            for job in jobs
            for request, collector in zip(job.prepared.requests, job.prepared.collectors)
        }
        self._unread: dict[str, list[int]] = {id: [] for id in self._owners}
        self._scored = {id: bytearray() for id in self._owners}  # lines of log-probabilities of what is unread
        self._ids: list[str] = []  # of the last step; while nobody comes or goes it is the very same list
        self._lines: list[list[int]] = []  # what is unread of these
        self._told = Lines()
        self._scores: list[bytearray] = []
        self._eager = {id for id, (_, collector) in self._owners.items() if not collector.patient}

    def take(self, output: TokenOutput) -> bool:
        """True to end the sequence early."""
        self._told.settle()
        job, collector = self._owners[output.id]
        self._progress.came(len(output.tokens))
        unread, scored = self._unread[output.id], self._scored[output.id]
        if unread:
            output = replace(output, tokens=[*unread, *output.tokens], logprobs=bytes(scored) + output.logprobs)
            unread.clear()
            scored.clear()
        delta = collector.feed(output)
        if delta.finish_reason is not None:
            job.left -= 1
            self._progress.ended(job)
        return delta.needs_abort

    def take_tokens(self, ids: list[str], tokens: list[int], logprobs: list[bytes]) -> list[str]:
        """One token for each of `ids`, with a line of log-probabilities for who asked; those to end early."""
        if ids is not self._ids:
            self._ids, self._lines = ids, list(map(self._unread.__getitem__, ids))
            self._scores = list(map(self._scored.__getitem__, ids))
        self._told.add(self._lines, tokens)
        if logprobs:
            deque(map(bytearray.extend, self._scores, logprobs), maxlen=0)
        self._progress.came(len(ids))
        return [id for id in ids if id in self._eager and self.take(TokenOutput(id, []))] if self._eager else []


def _wish(tools: Sequence[Mapping[str, Any]] | None, tool_choice: str | Mapping[str, Any] | None) -> Wish | None:
    """What is asked of calls. Raises UserError."""
    if tools is not None and not (_is_list(tools) and all(isinstance(tool, Mapping) for tool in tools)):
        raise UserError("tools must be a list of dictionaries", param="tools")
    given = [dict(tool) for tool in tools or ()]
    check_tools(given)
    kept, choice = choice_of(given, tool_choice, None)
    return Wish(kept, choice) if choice is not None else None


def _completion(collector: Collector) -> CompletionOutput:
    chosen = collector.logprobs.chosen()
    speaker = collector.speaker
    return CompletionOutput(
        index=collector.index,
        text=collector.text,
        token_ids=collector.tokens,
        cumulative_logprob=sum(chosen) if chosen else None,
        logprobs=cast(Any, collector.logprobs) if chosen else None,
        finish_reason=collector.finish_reason,
        stop_reason=collector.stop_reason,
        tool_calls=[ToolCall(call.id, call.name, call.arguments) for call in speaker.calls] if speaker else [],
        reasoning=(speaker.reasoning or None) if speaker else None,
        error=collector.error,
    )


class _Progress:
    """The bar: prompts done, tokens a second in and out."""

    def __init__(self, total: int, shown: bool) -> None:
        # Even one that shows nothing takes as long to make as a prompt to check.
        self._bar = tqdm(total=total, desc="Processed prompts", unit="prompt") if shown else None
        self._begin = time.monotonic()
        self._in = self._out = 0

    def __enter__(self) -> "_Progress":
        return self

    def __exit__(self, *exc: object) -> None:
        if self._bar is not None:
            self._bar.close()

    def came(self, tokens: int) -> None:
        """So many more tokens."""
        self._out += tokens

    def ended(self, job: _Job) -> None:
        """A sequence of `job` has ended."""
        if self._bar is not None and job.left == 0:
            self._in += len(job.prepared.prompt_tokens)
            seconds = max(time.monotonic() - self._begin, 1e-9)
            speed = f"in {self._in / seconds:.1f} tok/s, out {self._out / seconds:.1f} tok/s"
            self._bar.set_postfix_str(speed, refresh=False)
            self._bar.update()


def _as_list(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    """A lone string, list of token ids or dictionary is a list of one."""
    if isinstance(prompts, str | Mapping):
        return [prompts]
    if not _is_list(prompts):
        raise UserError("prompts must be a string, a list of strings, token ids or dictionaries", param="prompts")
    if not prompts:
        return []
    if type(prompts[0]) is int and all(type(item) is int for item in prompts):
        return [cast(Sequence[int], prompts)]
    return list(cast(Sequence[Prompt], prompts))


def _prompt_of(prompt: Prompt) -> str | list[int]:
    """The text or the token ids of one prompt. What is in a list is looked at where ids are checked."""
    if isinstance(prompt, Mapping):
        unknown = set(prompt) - {"prompt", "prompt_token_ids"}
        if unknown:
            raise UserError(f"a prompt has no {sorted(map(str, unknown))[0][:40]!r}; it has prompt or prompt_token_ids")
        inner = prompt.get("prompt_token_ids")
        inner = prompt.get("prompt") if inner is None else inner
        if inner is None or isinstance(inner, Mapping):
            raise UserError("a prompt needs prompt (a string) or prompt_token_ids (a list of integers)")
        prompt = cast(Prompt, inner)
    if isinstance(prompt, str | list):
        return prompt
    if _is_list(prompt) and all(type(token) is int for token in prompt):
        return list(cast(Sequence[int], prompt))
    raise UserError("a prompt is a string or a list of token ids")


def _conversations(messages: Sequence[Message] | Sequence[Sequence[Message]]) -> list[Sequence[Message]]:
    """One conversation is a list of one. What is in a message is for the template's side to check."""
    if not _is_list(messages) or not messages:
        raise UserError("messages must be a list of messages, or of such lists", param="messages")
    if isinstance(messages[0], Mapping):
        return [cast(Sequence[Message], messages)]
    return list(cast(Sequence[Sequence[Message]], messages))


def _priorities(items: Sequence[Any], given: Sequence[int] | None) -> Sequence[int]:
    if given is None:
        return [0] * len(items)
    if not _is_list(given) or not all(type(one) is int for one in given):
        raise UserError("priority must be a list of whole numbers, one a prompt", param="priority")
    if len(given) != len(items):
        raise UserError(f"{len(items)} prompts but {len(given)} priorities", param="priority")
    return given


def _is_list(value: object) -> bool:
    """A sequence of things; text and bytes are one thing."""
    return isinstance(value, Sequence) and not isinstance(value, str | bytes | bytearray | memoryview)


@contextmanager
def _placed(where: str, count: int) -> Iterator[None]:
    """Name the prompt in the errors of one of several."""
    try:
        yield
    except UserError as error:
        if count > 1:
            error.param = where if error.param is None else f"{where}.{error.param}"
            error.message = f"{where}: {error.message}"
            error.args = (error.message,)
        raise
