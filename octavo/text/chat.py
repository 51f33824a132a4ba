"""Chat templates: Jinja with the habits of transformers' ``apply_chat_template``, bounded, without transformers."""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension
from jinja2.parser import Parser

from octavo.base.errors import ConfigError, UserError
from octavo.text.budget import Budget, LimitReached, spending
from octavo.text.growth import check_json, check_width
from octavo.text.messages import TemplateTraits, normalize
from octavo.text.sandbox import BoundedSandbox
from octavo.text.special import Bounds, Rendered, Shield, SpecialText, clean
from octavo.text.tokenizer import Tokenizer

MAX_SOURCE_CHARS = 1 << 20
MAX_RENDERED_CHARS = 1 << 24
RENDER_SECONDS = 10.0
_CONTINUE = "\ufdd2 "  # follows the message to continue; its space shows whether the template trims
_RESERVED = frozenset({"messages", "tools", "documents", "add_generation_prompt"})

NO_TEMPLATE = "this model has no chat template; start the server with --chat-template FILE, or use /v1/completions"


class GenerationTag(Extension):
    """``{% generation %}``: marks the model's own words for training; here only its body counts."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> nodes.Node:
        """The body in a scope of its own."""
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body).set_lineno(line)


class ChatTemplate:
    """A model's templates. Thread safe.

    `source` is one template or several by name: ``tool_use`` serves requests with tools, ``default`` all else.
    `special_texts` (``bos_token`` ...) are variables of the template; `special` finds control strings in messages.
    Raises ConfigError if a template cannot be compiled.
    """

    def __init__(
        self,
        source: str | Mapping[str, str],
        *,
        special_texts: Mapping[str, str] | None = None,
        special: SpecialText | None = None,
        max_chars: int = MAX_RENDERED_CHARS,
        seconds: float = RENDER_SECONDS,
    ) -> None:
        sources = {"default": source} if isinstance(source, str) else dict(source)
        self._templates = {name: _Compiled(name, text) for name, text in sources.items()}
        self._special_texts = dict(special_texts or {})
        self._special = special
        self._max_chars = max_chars
        self._seconds = seconds

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        *,
        continue_final_message: bool = False,
        documents: Sequence[Mapping[str, Any]] | None = None,
        bounds: Bounds | None = None,
        **kwargs: Any,
    ) -> Rendered:
        """The prompt. Any fault of messages or template is a UserError that names it.

        Raises Crowded when what goes in cannot fit the `bounds`.
        """
        if continue_final_message and add_generation_prompt:
            raise UserError(
                "continue_final_message and add_generation_prompt exclude each other", param="continue_final_message"
            )
        compiled = self._choose(bool(tools))
        prepared = normalize(messages, compiled.traits)
        variables: dict[str, Any] = {
            **self._special_texts,
            **{name: value for name, value in kwargs.items() if name not in _RESERVED},
        }
        given: dict[str, Any] = {"messages": prepared, "tools": list(tools) if tools else None, "documents": documents}
        strings: tuple[str, ...] = ()
        if self._special is not None:
            shield = Shield(self._special, bounds)
            try:
                given = shield.hide(given)
                variables.update(shield.hide({name: variables[name] for name in kwargs if name in variables}))
            except RecursionError as error:
                raise UserError("messages or tools are nested too deeply", param="messages") from error
            strings = shield.strings
        if continue_final_message:
            _mark_final(given["messages"][-1])
        text = self._run(compiled, {**variables, **given, "add_generation_prompt": add_generation_prompt})
        if continue_final_message:
            text = _cut_at_mark(text)
        return Rendered(clean(text), strings)

    def _choose(self, with_tools: bool) -> "_Compiled":
        if with_tools and "tool_use" in self._templates:
            return self._templates["tool_use"]
        if "default" in self._templates:
            return self._templates["default"]
        if len(self._templates) == 1:
            return next(iter(self._templates.values()))
        names = ", ".join(sorted(self._templates)) or "none"
        raise UserError(f"this model has no default chat template (it has: {names})", param="messages")

    def _run(self, compiled: "_Compiled", variables: dict[str, Any]) -> str:
        budget = Budget(self._max_chars, self._seconds)
        pieces: list[str] = []
        left = self._max_chars
        try:
            with spending(budget):
                for piece in compiled.template.generate(variables):
                    left -= len(piece)
                    if left < 0:
                        raise LimitReached("the chat template produces too much text")
                    pieces.append(piece)
        except jinja2.TemplateError as error:
            raise UserError(f"chat template: {_short(error)}", param="messages") from error
        except RecursionError as error:
            raise UserError("chat template: nested too deeply", param="messages") from error
        except Exception as error:  # a template can raise whatever Python can
            raise UserError(f"chat template: {type(error).__name__}: {_short(error)}", param="messages") from error
        return "".join(pieces)


class _Compiled:
    """One template and what its syntax tells."""

    def __init__(self, name: str, source: str) -> None:
        if len(source) > MAX_SOURCE_CHARS:
            raise ConfigError(f"chat template {name!r} is longer than {MAX_SOURCE_CHARS} characters")
        try:
            self.template = _ENVIRONMENT.from_string(source)
            self.traits = TemplateTraits(_ENVIRONMENT.parse(source), source)
        except jinja2.TemplateSyntaxError as error:
            raise ConfigError(f"chat template {name!r}, line {error.lineno}: {_short(error)}") from error
        except Exception as error:  # RecursionError, and what compile() raises for code it finds too deep
            raise ConfigError(f"chat template {name!r}: {type(error).__name__}: {_short(error)}") from error


def load_chat(tokenizer: Tokenizer) -> ChatTemplate | None:
    """The templates of a tokenizer, or None if it has none."""
    if not tokenizer.templates:
        return None
    return ChatTemplate(tokenizer.templates, special_texts=tokenizer.special_texts, special=tokenizer.special)


def _environment() -> BoundedSandbox:
    environment = BoundedSandbox(
        trim_blocks=True, lstrip_blocks=True, extensions=[GenerationTag, "jinja2.ext.loopcontrols"], cache_size=0
    )
    environment.add_filter("tojson", _tojson)
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment


def _tojson(
    value: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: bool = False
) -> str:
    """JSON without the HTML escapes of jinja2's own filter."""
    for part in (indent, *(separators or ())):
        check_width(part)
    check_json(value)
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: Any) -> None:
    raise jinja2.TemplateError(str(message)[:400])


def _strftime_now(format: Any) -> str:
    check_width(format)
    return datetime.now().strftime(format)


def _mark_final(message: dict[str, Any]) -> None:
    """Put the mark behind the last text of the message to continue."""
    content = message["content"]
    if isinstance(content, list) and content:
        content[-1]["text"] += _CONTINUE
    elif isinstance(content, str):
        message["content"] = content + _CONTINUE
    else:
        raise UserError("the final message has no text to continue", param="continue_final_message")


def _cut_at_mark(text: str) -> str:
    position = text.rfind(_CONTINUE.strip())
    if position < 0:
        raise UserError("the chat template drops the message to continue", param="continue_final_message")
    kept = text[:position]
    return kept if text.startswith(_CONTINUE, position) else kept.rstrip()


def _short(error: Exception) -> str:
    return " ".join(str(error).split())[:300]


_ENVIRONMENT = _environment()
