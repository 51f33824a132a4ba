"""Schemas, tools and templates that mean harm, beside streams that must not notice."""

import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from octavo.bench.report import Row, row
from octavo.bench.structured.ask import Asker, Reply

NEIGHBOURS = 8
IN_TIME_S = 2.0
TURN = [{"role": "user", "content": "Hello."}]


def corpus() -> list[tuple[str, dict[str, Any]]]:
    """One request of each kind: name and the fields that make it what it is."""
    return [
        *((f"schema: {name}", _schema(schema)) for name, schema in _schemas().items()),
        *((f"regex {pattern[:24]!r}", {"structured_outputs": {"regex": pattern}}) for pattern in REGEXES),
        *((f"grammar: {name}", {"structured_outputs": {"grammar": text}}) for name, text in _grammars().items()),
        *((f"tools: {name}", {"tools": tools, "tool_choice": "required"}) for name, tools in _tools().items()),
        *((f"fields: {name}", fields) for name, fields in _fields().items()),
        *((f"template: {name}", {"chat_template": text}) for name, text in TEMPLATES.items()),
    ]


REGEXES = (
    "(a+)+$",
    "(?=x)",
    r"(\1)",
    "[",
    "a{1,1000000}",
    "(.*){50}",
    "(((a{1,99}){1,99}){1,99}){1,99}",
    "(" * 2000 + "a" + ")" * 2000,
    "x" * 5000,
    "((a|b|c|d){1,60}e){1,60}" + "(.{0,200}z){1,40}",
)
TEMPLATES = {
    "endless": "{% for a in range(99999) %}{% for b in range(99999) %}x{% endfor %}{% endfor %}",
    "huge": "{{ 'x' * 999999999 }}",
    "escape": "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "syntax": "{% for %}",
}


def _schema(schema: Any) -> dict[str, Any]:
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}}


def _schemas() -> dict[str, Any]:
    deep: dict[str, Any] = {"type": "object"}
    for _ in range(200):
        deep = {"type": "object", "properties": {"a": deep}, "required": ["a"]}
    text = {"type": "string"}
    return {
        "recurs without end": {"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]},
        "refers to itself": {"$ref": "#"},
        "two that refer to each other": {
            "$ref": "#/$defs/a",
            "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}},
        },
        "too deep": deep,
        "a megabyte": {"enum": ["x" * 1000 + str(index) for index in range(1000)]},
        "ten thousand values": {"enum": [f"v{index}" for index in range(10_000)]},
        "a thousand properties": {"type": "object", "properties": {f"p{index}": text for index in range(1000)}},
        "three thousand properties": {"type": "object", "properties": {f"p{index}": text for index in range(3000)}},
        "no type": {"type": "stsring"},
        "properties as a list": {"properties": []},
        "huge minItems": {"type": "array", "minItems": 10**9},
        "huge maxLength": {"type": "string", "minLength": 10**8, "maxLength": 10**9},
        "a pattern that is none": {"type": "string", "pattern": "("},
        "a pattern that explodes": {"type": "string", "pattern": "((a{1,90}){1,90}){1,90}"},
        "quotes in a type": {"type": '"something"'},
        "leads out": {"$ref": "file:///etc/passwd"},
        "leads out by net": {"$ref": "http://127.0.0.1:1/schema.json"},
        "everything at once": {
            "allOf": [
                {"anyOf": [{"type": "object", "properties": {f"k{i}{j}": text}} for i in range(30)]} for j in range(30)
            ]
        },
        "patterns that overlap": {
            "type": "object",
            "patternProperties": {"^.*a.*b": text, "^.*b.*a": {"type": "null"}},
        },
        "names with control characters": {
            "type": "object",
            "properties": {"a\u0000b\u001b": text},
            "required": ["a\u0000b\u001b"],
        },
        "multipleOf of nothing": {"type": "number", "multipleOf": 0},
        "bounds that cross": {"type": "integer", "minimum": 9, "maximum": 3},
    }


def _grammars() -> dict[str, str]:
    return {
        "a megabyte": "start: " + " | ".join(f'"word{index}"' for index in range(60_000)),
        "left recursion": 'start: start "a" | start "b" | start start',
        "nothing ends": 'start: "a" start',
        "no start": 'x: "a"',
        "garbage": "\u0000\u0001{{{{",
        "ambiguous": 'start: a\na: a a | "x" | ""',
        "many rules": "start: r0\n"
        + "\n".join(f'r{index}: "a" r{index + 1} | r{index + 1} "b"' for index in range(900))
        + '\nr900: "z"',
    }


def _tools() -> dict[str, list[dict[str, Any]]]:
    def tool(name: Any, parameters: Any = None) -> dict[str, Any]:
        return {"type": "function", "function": {"name": name, "parameters": parameters or {"type": "object"}}}

    return {
        "a thousand": [tool(f"tool{index}") for index in range(1000)],
        "a name of a megabyte": [tool("x" * (1 << 20))],
        "a name with control characters": [tool("a\u0000b")],
        "a name with spaces": [tool("a b")],
        "twice the same": [tool("a"), tool("a")],
        "a type with quotes": [tool("a", {"type": '"something"'})],
        "a pattern that is none": [
            tool("a", {"type": "object", "properties": {"x": {"type": "string", "pattern": "("}}})
        ],
        "recurs without end": [tool("a", {"type": "object", "properties": {"x": {"$ref": "#"}}, "required": ["x"]})],
        "a pattern that explodes": [
            tool("a", {"type": "object", "properties": {"x": {"type": "string", "pattern": "((a{1,90}){1,90}){1,90}"}}})
        ],
        "no object": [tool("a", {"type": "array", "items": {}})],
    }


def _fields() -> dict[str, dict[str, Any]]:
    return {
        "two constraints": {"structured_outputs": {"regex": "a", "choice": ["b"]}},
        "no choice": {"structured_outputs": {"choice": []}},
        "ten thousand choices": {"structured_outputs": {"choice": [f"c{index}" for index in range(10_000)]}},
        "an unknown engine": {"structured_outputs": {"regex": "a", "backend": "nonsense"}},
        "a tag without a trigger": {"structured_outputs": {"structural_tag": {"structures": [], "triggers": []}}},
    }


def rows(asker: Asker) -> tuple[list[Row], list[str]]:
    """The neighbours' texts alone and beside the whole corpus; how long each refusal took."""
    alone = _neighbours(asker)
    cases = corpus()
    with ThreadPoolExecutor(2) as threads:
        streams = threads.submit(_neighbours, asker)
        time.sleep(0.5)
        # Two at a time: a bomb may take its two seconds, and is not to wait for others.
        few = Asker(asker.port, at_once=2)
        replies = few.each(lambda case: asker.ask({"messages": TURN, "max_tokens": 16, **case[1]}), cases)
        beside = streams.result()
    faults = [fault for (name, _), reply in zip(cases, replies) if (fault := _fault(name, reply))]
    faults += [
        f"neighbour {index}: {mine!r} is not {own!r}"[:300]
        for index, (mine, own) in enumerate(zip(beside, alone))
        if mine != own
    ]
    slowest = max(
        zip((reply.seconds for reply in replies if reply.status != 200), (name for name, _ in cases)), default=(0.0, "")
    )
    refused = sum(reply.status == 400 for reply in replies)
    same = sum(mine == own for mine, own in zip(beside, alone))
    once, more = _at_once(asker)
    faults += more
    return [
        *once,
        row(
            "J6",
            f"hostile requests answered as they should be, of {len(cases)}, {refused} with 400",
            len(cases) - len([f for f in faults if not f.startswith("neighbour")]),
            "requests",
            limit=len(cases),
        ),
        row("J6.same", "streams beside them that say what they say alone", same, "streams", limit=NEIGHBOURS),
        row("J6.slowest", "the slowest refusal", slowest[0], "s", limit=IN_TIME_S, less=True),
    ], faults


def together() -> list[tuple[str, dict[str, Any]]]:
    """Sixteen that come at once: of each kind that takes long, or once did."""
    named = dict(corpus())
    names = ("recurs without end", "refers to itself", "everything at once", "huge minItems", "huge maxLength")
    found = [(name, named[f"schema: {name}"]) for name in names]
    found += [(name, named[f"schema: {name}"]) for name in ("a megabyte", "names with control characters")]
    found += [(name, named[f"tools: {name}"]) for name in ("a thousand", "a name with control characters")]
    found += [(name, named[f"tools: {name}"]) for name in ("recurs without end",)]
    found += [(name, named[f"template: {name}"]) for name in ("endless",)]
    found += [(name, named[f"grammar: {name}"]) for name in ("a megabyte", "nothing ends")]
    text = named["grammar: many rules"]["structured_outputs"]["grammar"]
    return found + [(f"many rules {i}", {"structured_outputs": {"grammar": f"{text}{'z' * i}"}}) for i in range(3)]


def _at_once(asker: Asker) -> tuple[list[Row], list[str]]:
    """How long refusals take, and requests with good constraints beside them, when sixteen bad ones come at once."""
    cases = together()
    valid = [
        (f"valid {i}", _schema({"type": "object", "properties": {f"v{i}": {"type": "integer"}}})) for i in range(4)
    ]
    many = Asker(asker.port, at_once=len(cases) + len(valid))
    replies = many.each(lambda case: many.ask({"messages": TURN, "max_tokens": 16, **case[1]}), [*cases, *valid])
    bad, good = replies[: len(cases)], replies[len(cases) :]
    faults = [
        f"at once, {name}: HTTP {reply.status} after {reply.seconds:.1f} s: {reply.message}"[:300]
        for (name, _), reply in zip(cases, bad)
        if reply.status not in (200, 400, 413, 429) or (reply.status != 200 and reply.seconds > IN_TIME_S)
    ]
    faults += [f"at once, valid: HTTP {reply.status}: {reply.message}"[:300] for reply in good if reply.status != 200]
    refused = [reply.seconds for reply in bad if reply.status != 200]
    by_status = ", ".join(f"{sum(r.status == s for r in bad)} with {s}" for s in sorted({r.status for r in bad}))
    what = f"the slowest refusal of {len(cases)} at once ({by_status})"
    slow = max(reply.seconds for reply in good)
    return [
        row("J6.once", what, max(refused, default=0.0), "s", limit=IN_TIME_S, less=True),
        row("J6.valid", "the slowest answer of 16 tokens to a valid schema among them", slow, "s"),
    ], faults


def _neighbours(asker: Asker) -> list[str]:
    def one(index: int) -> str:
        body = {"messages": [{"role": "user", "content": f"Tell me about the number {index}."}]}
        return asker.stream({**body, "temperature": 1, "seed": index, "max_tokens": 120}).text

    with ThreadPoolExecutor(NEIGHBOURS) as threads:
        return list(threads.map(one, range(NEIGHBOURS)))


def _fault(name: str, reply: Reply) -> str | None:
    """A hostile request is refused in time with a 400 that says something, or it was harmless and is answered."""
    if reply.status not in (200, 400, 413):
        return f"{name}: HTTP {reply.status}: {reply.body}"[:300]
    if reply.status == 400 and (not reply.message or len(reply.message) > 1024):
        return f"{name}: a message of {len(reply.message)} characters"
    if reply.status == 400 and reply.seconds > IN_TIME_S:
        return f"{name}: refused after {reply.seconds:.1f} s"
    return None
