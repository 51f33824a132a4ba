"""Whether a limit on tokens changes what is said although it fits: labels, as an answer in JSON and as a tool call."""

import json
from collections.abc import Callable
from typing import Any

from octavo.bench.structured.ask import Asker, Reply
from octavo.bench.structured.schemas import NEEDS, Tally

LABELS = ("billing_issue", "technical_support", "account_closure", "refund_request", "shipping_delay")
MESSAGES = (
    "My internet is down, please help me fix the router.",
    "I want my money back for the broken lamp.",
    "Please close my account.",
    "Where is my parcel? It is two weeks late.",
    "I was charged twice this month.",
    "The app crashes whenever I open it.",
)
ASK = f"Which of {', '.join(LABELS)} is this message about? Answer in JSON. Message: "
SCHEMA = {
    "type": "object",
    "properties": {"category": {"enum": list(LABELS)}},
    "required": ["category"],
    "additionalProperties": False,
}
AMPLE = 120
LIMITS = (8, 9, 10, 12, 14, 18, 22, 26, 30, 36, 44)


def _in_json(limit: int, message: str) -> dict[str, Any]:
    form = {"type": "json_schema", "json_schema": {"name": "category", "schema": SCHEMA}}
    return {**_asked(limit, message), "response_format": form}


def _as_a_call(limit: int, message: str) -> dict[str, Any]:
    tool = {"type": "function", "function": {"name": "route", "parameters": SCHEMA}}
    return {**_asked(limit, message), "tools": [tool], "tool_choice": "required"}


def _asked(limit: int, message: str) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": ASK + message}], "temperature": 0, "max_tokens": limit}


FORMS: dict[str, Callable[[int, str], dict[str, Any]]] = {"JSON": _in_json, "tool call": _as_a_call}


def check(asker: Asker, form: str, message: str) -> Tally:
    """One message at all limits; those under the shortest answer do not count."""
    ample = _label(asker.ask(FORMS[form](AMPLE, message)))
    if ample is None:
        return Tally(faults=[f"{form}: {message}: no label without a limit"])
    found = Tally()
    for limit in LIMITS:
        reply = asker.ask(FORMS[form](limit, message))
        label = _label(reply)
        if reply.status == 400 and NEEDS.search(reply.message):
            found.too_short += 1
            continue
        if label == ample:
            found.valid += 1
        else:
            found.faults.append(f"{form}, {limit} tokens: {label} in place of {ample}: {message}")
    return found


def _label(reply: Reply) -> str | None:
    try:
        message = reply.body["choices"][0]["message"]
        calls = message.get("tool_calls")
        text = calls[0]["function"]["arguments"] if calls else message["content"]
        return str(json.loads(text)["category"])
    except (KeyError, IndexError, TypeError, ValueError):
        return None
