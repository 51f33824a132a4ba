"""Fields beyond the schema: those without effect, those refused, and the rest, which is named and let pass.

A known field that would change the answer and is not built yet must not be dropped in silence: a caller who asks
for a beam search and gets a plain sample with status 200 has been lied to.
"""

import logging
from collections.abc import Mapping
from typing import Any

import msgspec

from octavo.base.errors import UserError
from octavo.serve.decode import plain

log = logging.getLogger("octavo.serve")

SILENT = frozenset(
    {
        "user",
        "store",
        "metadata",
        "service_tier",
        "safety_identifier",
        "prompt_cache_key",
        "prompt_cache_retention",
        "prompt_cache_options",
        "prediction",
        "request_id",
        "session_id",
        "include_reasoning",
        "stream_interval",
    }
)

# Field -> values that ask for nothing. null always does.
REFUSED: dict[str, tuple[Any, ...]] = {
    "best_of": (1,),
    "use_beam_search": (False,),
    "length_penalty": (1, 1.0),
    "prompt_embeds": (),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "modalities": (["text"],),
    "audio": (),
    "web_search_options": (),
    "verbosity": ("medium",),
    "chat_template": (),
    "mm_processor_kwargs": ({},),
    "media_io_kwargs": ({},),
    "thinking_token_budget": (-1,),
    "repetition_detection": (),
    "watermarking": (False,),
    "kv_transfer_params": ({},),
    "ec_transfer_params": ({},),
    "vllm_xargs": ({},),
    "logits_processors": ([],),
    "moderation": (),
    "echo": (False,),
    "suffix": ("",),
    "max_completion_tokens": (),
    "top_logprobs": (0,),
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "return_prompt_text": (False,),
    "regex": (),
    "json_schema": (),
    "ebnf": (),
    "stop_regex": (),
    "lora_path": (),
    "adapter": (),
    "mcp_servers": ([],),
    "container": (),
    "output_expires_after": (),
}

MAX_REPORTED = 16
MAX_REPORTED_CHARS = 40
_logged: set[str] = set()


def sort_unknown(unknown: Mapping[str, msgspec.Raw]) -> list[str]:
    """Names of the fields that are ignored. UserError for one whose meaning would be lost."""
    ignored = []
    for name, raw in unknown.items():
        if name in REFUSED:
            value = plain(raw, name)
            if value is not None and not _harmless(value, REFUSED[name]):
                raise UserError(f"{name} is not supported by this server.", param=name, code="unsupported_parameter")
        elif bytes(raw) != b"null":
            ignored.append(name)
    return ignored


def ignored_header(names: list[str]) -> str:
    """Value of X-Octavo-Ignored: printable, short, and logged the first time a name is seen."""
    shown = [_printable(name) for name in names[:MAX_REPORTED]]
    new = [name for name in shown if name not in _logged]
    if new and len(_logged) < 256:
        _logged.update(new)
        log.warning("request fields without meaning here, ignored: %s", ", ".join(new))
    return ", ".join(shown) + (", ..." if len(names) > MAX_REPORTED else "")


def _harmless(value: Any, allowed: tuple[Any, ...]) -> bool:
    return any(value == other and isinstance(value, bool) == isinstance(other, bool) for other in allowed)


def _printable(name: str) -> str:
    return "".join(c if c.isascii() and (c.isalnum() or c in "_-.") else "?" for c in name[:MAX_REPORTED_CHARS])
