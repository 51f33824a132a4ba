"""The offline API: a model in this process, many prompts at once, results in order.

    llm = LLM("Qwen/Qwen2.5-0.5B-Instruct")
    for result in llm.generate(["Hello", "Once upon a time"], SamplingParams(max_tokens=32)):
        print(result.outputs[0].text)

Names and shapes are vLLM's.
"""

import itertools
import secrets
from collections.abc import Mapping, Sequence
from typing import Any

from octavo.base.config import EngineConfig, Resolved
from octavo.base.errors import UserError
from octavo.base.params import SamplingParams
from octavo.base.wire import EngineStats
from octavo.engine.batch import BatchRunner
from octavo.engine.inproc import InprocClient
from octavo.engine.interpreter import taking_turns
from octavo.engine.keywords import engine_config
from octavo.llm.given import Message, Prompt, as_conversations, as_list, as_priorities, placed, prompt_of, wish_of
from octavo.llm.outputs import CompletionOutput, RequestOutput, ToolCall
from octavo.llm.run import Job, Progress, Reader, settled_heap
from octavo.text.load import load_text
from octavo.text.request import Limits, TextProcessor
from octavo.text.tokenizer import Tokenizer
from octavo.text.told import Logprob

__all__ = ["LLM", "CompletionOutput", "Logprob", "RequestOutput", "ToolCall"]


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
        items = as_list(prompts)
        params = self._params_for(items, sampling_params)
        order = as_priorities(items, priority)
        jobs = []
        for index, (prompt, param) in enumerate(zip(items, params)):
            with placed(f"prompts[{index}]", len(items)):
                given = prompt_of(prompt)
                prepared = self._text.completion(given, param, request_id=self._new_id(), priority=order[index])
                jobs.append(Job(prepared, given if isinstance(given, str) else None))
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
        wish = wish_of(tools, tool_choice)
        extra = chat_template_kwargs
        if extra is not None and not (isinstance(extra, Mapping) and all(isinstance(name, str) for name in extra)):
            raise UserError("chat_template_kwargs must be a dictionary of names", param="chat_template_kwargs")
        conversations = as_conversations(messages)
        params = self._params_for(conversations, sampling_params)
        jobs = []
        for index, (conversation, param) in enumerate(zip(conversations, params)):
            with placed(f"messages[{index}]", len(conversations)):
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
                jobs.append(Job(prepared, prepared.collectors[0].prompt_text))
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

    def _run(self, jobs: "list[Job]", use_tqdm: bool) -> list[RequestOutput]:
        with Progress(len(jobs), use_tqdm) as progress, settled_heap(), taking_turns():
            reader = Reader(jobs, progress)
            requests = [request for job in jobs for request in job.prepared.requests]
            self._batch.run(requests, reader.take, reader.take_tokens)
        return [job.result() for job in jobs]
