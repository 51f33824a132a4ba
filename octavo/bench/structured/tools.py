"""Tool calls held against a real model: a call that is demanded comes, alone, and its arguments fit."""

from typing import Any

from octavo.bench.structured.ask import Asker
from octavo.bench.structured.schemas import Tally, misfit

PLACES = ("Ulm", "Lagos", "Lima", "Hanoi", "São Paulo", 'the "Old" Town', "北京", "Oslo", "C:\\temp", "Bath")
ASKS = (
    "What is the weather in {0}?",
    "Book a table for four in {0} at eight.",
    "Send Anna a mail that says we meet in {0}.",
    "Find three cheap hotels in {0} with a pool.",
    "Play something slow from {0}.",
    "Say hello to {0}.",
    "Convert 20 euros into the money of {0}.",
    "Do nothing at all about {0}.",
    "Plan a tour: {0}, then home, then {0} again.",
    "List files that mention {0}.",
)
TEXT = {"type": "string"}
PARAMETERS: dict[str, Any] = {
    "weather": {
        "type": "object",
        "properties": {"place": TEXT, "unit": {"enum": ["celsius", "fahrenheit"]}, "days": {"type": "integer"}},
        "required": ["place", "unit"],
        "additionalProperties": False,
    },
    "book_table": {
        "type": "object",
        "properties": {
            "people": {"type": "integer", "minimum": 1, "maximum": 20},
            "when": {"type": "string", "pattern": "^[0-2][0-9]:[0-5][0-9]$"},
            "notes": {"anyOf": [TEXT, {"type": "null"}]},
        },
        "required": ["people", "when"],
        "additionalProperties": False,
    },
    "send_mail": {
        "type": "object",
        "properties": {"to": {"type": "array", "items": TEXT, "minItems": 1, "maxItems": 3}, "body": TEXT},
        "required": ["to", "body"],
        "additionalProperties": False,
    },
    "find": {
        "type": "object",
        "properties": {"query": {"$ref": "#/$defs/query"}, "limit": {"type": "number", "exclusiveMinimum": 0}},
        "required": ["query"],
        "$defs": {"query": {"type": "object", "properties": {"words": TEXT}, "required": ["words"]}},
    },
    "noop": {"type": "object", "properties": {}, "additionalProperties": False},
}
TOOLS = [
    {"type": "function", "function": {"name": name, "description": f"Use it to {name}.", "parameters": schema}}
    for name, schema in PARAMETERS.items()
]
MOST = 200


def prompts(count: int) -> list[str]:
    """So many different ones, a hundred at most and then again."""
    every = [ask.format(place) for place in PLACES for ask in ASKS]
    return [every[index % len(every)] for index in range(count)]


def check_call(asker: Asker, prompt: str, seed: int, name: str | None) -> Tally:
    """Demand a call of `name`, or of any tool, and look at what comes."""
    choice: Any = "required" if name is None else {"type": "function", "function": {"name": name}}
    reply = asker.ask(
        {
            "messages": [{"role": "user", "content": prompt}],
            "tools": TOOLS,
            "tool_choice": choice,
            "temperature": 1,
            "seed": seed,
            "max_tokens": MOST,
        }
    )
    if reply.status != 200:
        return Tally(faults=[f"{prompt}: HTTP {reply.status}: {reply.body}"[:400]])
    answer = reply.body["choices"][0]
    calls = answer["message"].get("tool_calls") or []
    if not calls:
        return Tally(faults=[f"{prompt}, seed {seed}: no call: {answer}"[:400]])
    for call in calls:
        called, arguments = call["function"]["name"], call["function"]["arguments"]
        if called not in PARAMETERS or name not in (None, called):
            return Tally(faults=[f"{prompt}: called {called}"])
        fault = misfit(PARAMETERS[called], arguments)
        if fault is not None:
            return Tally(faults=[f"{prompt}, seed {seed}: {answer['finish_reason']}: {fault}: {arguments!r}"[:400]])
    return Tally(valid=1)
