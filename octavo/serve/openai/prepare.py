"""From a checked body to sequences for the engine. `chat_sequences` and `prompt_sequences` may run in a thread."""

import re
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec

from octavo.base.errors import UserError, bad_value
from octavo.base.params import SamplingParams
from octavo.serve.calls import Backend, Call
from octavo.serve.decode import Schema
from octavo.serve.openai.bounds import check_bounds
from octavo.serve.openai.fields import ignored_header, sort_unknown
from octavo.serve.openai.prompts import Prompt, split_prompts, template_messages
from octavo.serve.openai.schema import SAMPLING, ChatFields, ChatRequest, CompletionRequest, Message, Sampled
from octavo.serve.openai.structured import grammar_of
from octavo.text.fill import find_fill
from octavo.text.parse.speech import Wish
from octavo.text.request import Prepared
from octavo.text.tools import check_tools, choice_of

MAX_CHOICES = 1024
MAX_PROMPT_LOGPROBS = 1 << 20  # each takes half a kilobyte while the answer is written
BACKGROUND_PRIORITY = (1 << 31) - 1  # behind all that a caller may ask for
IGNORED_HEADER = b"x-octavo-ignored"

B = TypeVar("B", bound=Sampled)

_TOKEN_ID = re.compile(r"0|[1-9][0-9]{0,9}")  # one way to write each, so that none is given twice
_THINKING_SWITCHES = ("enable_thinking", "thinking")  # what templates call it
# Words that the renderer sets itself; a caller may not set them behind its back.
_RESERVED = frozenset(
    {
        "self",
        "messages",
        "tools",
        "documents",
        "add_generation_prompt",
        "continue_final_message",
        "chat_template",
        "tokenize",
    }
)


@dataclass(frozen=True)
class Ticket:
    """What is settled about a generating request before its prompt is looked at.

    `id` is ours, never the caller's: two callers may send the same X-Request-Id.
    """

    backend: Backend
    id: str
    model: str
    cache_salt: str
    priority: int

    @property
    def head(self) -> dict[str, Any]:
        """The fields that every object of the answer carries."""
        return {"id": self.id, "model": self.model}


async def begin(call: Call, schema: Schema[B], prefix: str) -> tuple[Ticket, B]:
    """Ticket and body of a generating request; fields without meaning are named in the answer's header."""
    backend = call.service.backend
    call.service.limits.check_room()
    call.meter.begin()
    body, unknown = await call.read(schema)
    if body.timeout is not None:
        call.timeout_s = min(body.timeout, call.time_limit_s)
    note_unknown(call, unknown)
    check_bounds(body, call.limits)
    model = call.service.check_model(body.model)
    ordered = call.service.config.engine.scheduler.scheduling_policy == "priority"
    if body.priority and not ordered:
        raise UserError(
            "priority needs a server with --scheduling-policy priority.", param="priority", code="unsupported_value"
        )
    salt = body.cache_salt or ""
    if call.tenant and not call.service.config.serve.shared_prefix_cache:
        # One key must not learn from the cache what another has asked.
        salt = f"{call.tenant}:{salt}"
    priority = BACKGROUND_PRIORITY if call.background and ordered else body.priority or 0
    return Ticket(backend, f"{prefix}-{uuid.uuid4().hex}", model, salt, priority), body


def note_unknown(call: Call, unknown: dict[str, msgspec.Raw]) -> None:
    """Refuses what would change the answer and names the rest in a header."""
    ignored = sort_unknown(unknown)
    if ignored:
        call.headers.append((IGNORED_HEADER, ignored_header(ignored).encode()))


def check_choices(prompts: int, n: int) -> None:
    """Bounds the work of one request before any of it exists."""
    if prompts * n > MAX_CHOICES:
        raise UserError(f"{prompts} prompts times n = {n} is more than {MAX_CHOICES} choices.", param="n")


def check_positions(prepared: Sequence[Prepared], param: str) -> None:
    """Bounds what a prompt's log-probabilities take in memory and in the answer, before any is computed. `param`: the
    field that asks for them."""
    named = sum(named_positions(each) for each in prepared)
    if named > MAX_PROMPT_LOGPROBS:
        raise UserError(
            f"{param} asks for {named} log-probabilities of prompts; a request may have {MAX_PROMPT_LOGPROBS}. "
            "Ask for fewer a position, or for fewer tokens at once.",
            param=param,
            code="invalid_value",
        )


def named_positions(prepared: Prepared) -> int:
    """Log-probabilities of the prompt in all its choices: the token's own and the likeliest."""
    each = prepared.requests[0].sampling.prompt_logprobs + 1  # -1: none
    return each * len(prepared.prompt_tokens) * len(prepared.requests)


def sampling(backend: Backend, body: Sampled, max_tokens: int | None) -> SamplingParams:
    """The body's sampling fields over the model's defaults, checked; `max_tokens` where the body has none."""
    given = {name: value for name in SAMPLING if (value := getattr(body, name)) is not None}
    given.setdefault("max_tokens", max_tokens)
    if given.get("logprob_token_ids"):
        given["logprobs"] = 0  # the endpoint says how many
    if body.logit_bias is not None:
        given["logit_bias"] = {_token_id(key): bias for key, bias in body.logit_bias.items()}
    return backend.text.defaults.params(**given).checked()


def prompt_sequences(ticket: Ticket, body: CompletionRequest, params: SamplingParams) -> list[Prepared]:
    """One Prepared a prompt. UserError names the prompt at fault."""
    prompts = split_prompts(body.prompt)
    if body.suffix:
        prompts, params = fill_prompts(ticket.backend, body, prompts, params)
    check_choices(len(prompts), params.n)
    many = len(prompts) > 1
    grammar = grammar_of(body)
    return [
        ticket.backend.text.completion(
            prompt,
            params,
            request_id=f"{ticket.id}-{index}" if many else ticket.id,
            priority=ticket.priority,
            cache_salt=ticket.cache_salt,
            echo=bool(body.echo),
            add_special=body.add_special_tokens is not False,
            param=f"prompt[{index}]" if many else "prompt",
            grammar=grammar,
        )
        for index, prompt in enumerate(prompts)
    ]


def fill_prompts(
    backend: Backend, body: CompletionRequest, prompts: list[Prompt], params: SamplingParams
) -> tuple[list[Prompt], SamplingParams]:
    """Prompts that ask for what stands between them and the suffix, and where such an answer ends."""
    form = find_fill(backend.text.tokenizer)
    if form is None:
        raise UserError("This model has no tokens to fill in the middle.", param="suffix", code="unsupported_value")
    for name in ("echo", "truncate_prompt_tokens"):
        if getattr(body, name):
            raise bad_value(name, "does not go with suffix")
    suffix = backend.text.tokenize(body.suffix or "", add_special=False, param="suffix")
    filled: list[Prompt] = []
    for index, prompt in enumerate(prompts):
        if not isinstance(prompt, str):
            raise UserError("suffix needs prompts of text.", param=f"prompt[{index}]", code="invalid_value")
        before = backend.text.tokenize(prompt, add_special=False) if prompt else []
        filled.append(form.tokens(backend.text.tokenizer, before, suffix))
    stops = list(dict.fromkeys([*(params.stop_token_ids or ()), *form.ends]))
    return filled, params.replace(stop_token_ids=stops)


def chat_sequences(
    ticket: Ticket, body: ChatRequest, params: SamplingParams, *, keep_tools: bool = True
) -> list[Prepared]:
    """The conversation as a prompt, continued ``params.n`` times. `keep_tools`: under tool_choice none, too."""
    arguments = template_arguments(body, body.tools if keep_tools or body.tool_choice != "none" else None)
    tools, choice = choice_of(body.tools, body.tool_choice, body.parallel_tool_calls)
    budget = body.thinking_token_budget
    wish = Wish(tools, choice, None if budget is None or budget < 0 else budget)
    prepared = ticket.backend.text.chat(
        template_messages(body.messages),
        params,
        request_id=ticket.id,
        priority=ticket.priority,
        cache_salt=ticket.cache_salt,
        wish=wish,
        grammar=grammar_of(body),
        add_special=bool(body.add_special_tokens),
        **arguments,
    )
    return [prepared]


def chat_tokens(backend: Backend, body: ChatFields, messages: list[Message], *, add_special: bool = False) -> list[int]:
    """Token ids of a rendered conversation."""
    rendered = backend.text.render(template_messages(messages), **template_arguments(body, body.tools))
    return backend.text.tokenize(rendered, add_special=add_special, param="messages")


def template_arguments(body: ChatFields, tools: list[dict[str, Any]] | None) -> dict[str, Any]:
    """What goes to the template beside the messages. UserError for tools or names that may not."""
    if tools:
        check_tools(tools)
    extra = dict(body.chat_template_kwargs or {})
    for name in extra:
        if name in _RESERVED:
            where = f"chat_template_kwargs.{name}"
            raise bad_value(where, "is set by the server")
    if body.documents is not None:
        extra["documents"] = body.documents
    if body.reasoning_effort is not None:
        extra.setdefault("reasoning_effort", body.reasoning_effort)
        for name in _THINKING_SWITCHES:
            extra.setdefault(name, body.reasoning_effort != "none")
    generate = body.add_generation_prompt
    if generate is None:
        generate = not body.continue_final_message
    return {
        "tools": tools,
        "add_generation_prompt": generate,
        "continue_final_message": bool(body.continue_final_message),
        "template_args": extra,
    }


def _token_id(key: str) -> int:
    if not _TOKEN_ID.fullmatch(key):
        raise UserError("logit_bias maps token ids to numbers.", param=f"logit_bias.{key[:24]}", code="invalid_value")
    return int(key)
