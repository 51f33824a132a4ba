"""The API's description: ``/openapi.json`` from the structs that read the requests, and a page that shows it."""

import re
from collections.abc import Sequence
from typing import Any

import msgspec

from octavo import __version__
from octavo.serve import web
from octavo.serve.auth import Scope
from octavo.serve.calls import Call, Endpoint, Reply, json_reply

FAR = 1 << 10  # above this a bound says nothing that a reader could use
_PARAMETER = re.compile(r"\{(\w+)(?::\w+)?\}")
_REFS = "#/components/schemas/{name}"
_QUERIES: dict[tuple[str, str], tuple[tuple[str, dict[str, Any]], ...]] = {
    ("/health", "GET"): (("progress", {"type": "integer", "minimum": 1, "maximum": 3600}),),
    ("/v1/responses/{response_id}", "GET"): (
        ("stream", {"type": "boolean"}),
        ("starting_after", {"type": "integer", "minimum": 0}),
    ),
    ("/v1/responses/{response_id}/input_items", "GET"): (
        ("after", {"type": "string"}),
        ("limit", {"type": "integer", "minimum": 1, "maximum": 100}),
        ("order", {"enum": ["asc", "desc"]}),
    ),
    ("/v1/files", "GET"): (
        ("purpose", {"type": "string"}),
        ("after", {"type": "string"}),
        ("limit", {"type": "integer", "minimum": 1, "maximum": 10_000}),
        ("order", {"enum": ["asc", "desc"]}),
    ),
    ("/sleep", "POST"): (
        ("level", {"type": "integer", "minimum": 1, "maximum": 2}),
        ("mode", {"enum": ["abort", "wait", "keep"]}),
        ("timeout", {"type": "integer", "minimum": 0, "maximum": 3600}),
    ),
    ("/wake_up", "POST"): (("tags", {"type": "array", "items": {"enum": ["weights", "kv_cache"]}}),),
    ("/v1/batches", "GET"): (
        ("after", {"type": "string"}),
        ("limit", {"type": "integer", "minimum": 1, "maximum": 100}),
    ),
}
_FORM = {
    "type": "object",
    "properties": {"file": {"type": "string", "format": "binary"}, "purpose": {"type": "string"}},
    "required": ["file", "purpose"],
}
_OTHER_BODIES: dict[tuple[str, str], dict[str, Any]] = {
    ("/v1/files", "POST"): {"multipart/form-data": {"schema": _FORM}},
}


async def openapi(call: Call) -> Reply:
    """The OpenAPI 3.1 description of every route."""
    return json_reply(describe(call.service.endpoints, keyed=call.service.keys.active))


async def page(call: Call) -> Reply:  # noqa: ARG001 - one signature for all handlers
    """The documentation page."""
    return web.reply("docs.html")


def describe(endpoints: Sequence[Endpoint], *, keyed: bool) -> dict[str, Any]:
    """The OpenAPI document of a table of routes. `keyed`: the server asks for a key."""
    bodies = [endpoint.body for endpoint in endpoints if endpoint.body is not None]
    _, schemas = msgspec.json.schema_components(bodies, ref_template=_REFS)
    _drop_far_bounds(schemas)
    paths: dict[str, dict[str, Any]] = {}
    for endpoint in endpoints:
        path = _PARAMETER.sub(r"{\1}", endpoint.path)
        for method in endpoint.methods:
            paths.setdefault(path, {})[method.lower()] = _operation(endpoint, path, method, keyed)
    schemes = {
        "key": {"type": "http", "scheme": "bearer"},
        "x-api-key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
    }
    return {
        "openapi": "3.1.0",
        "info": {"title": "Octavo", "version": __version__, "license": {"name": "Apache-2.0"}},
        "paths": paths,
        "components": {"schemas": {**schemas, "Error": _ERROR}, "securitySchemes": schemes if keyed else {}},
    }


def _drop_far_bounds(schema: Any) -> None:
    """Leaves out lengths that the limit on bodies comes before, and that make tools write endless strings."""
    if isinstance(schema, dict):
        for name in ("maxLength", "maxItems"):
            if isinstance(schema.get(name), int) and schema[name] > FAR:
                del schema[name]
        for value in schema.values():
            _drop_far_bounds(value)
    elif isinstance(schema, list):
        for value in schema:
            _drop_far_bounds(value)


def _operation(endpoint: Endpoint, path: str, method: str, keyed: bool) -> dict[str, Any]:
    text = " ".join((endpoint.handler.__doc__ or "").split())
    found: dict[str, Any] = {
        "summary": text,
        "operationId": f"{method.lower()}{re.sub(r'[^a-zA-Z0-9]+', '_', path)}".rstrip("_"),
        "responses": {
            "200": {"description": "The answer."},
            "default": {"description": "What went wrong.", "content": _json({"$ref": _REFS.format(name="Error")})},
        },
    }
    named = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
        for name in _PARAMETER.findall(path)
    ]
    named += [
        {"name": name, "in": "query", "required": False, "schema": schema}
        for name, schema in _QUERIES.get((path, method), ())
    ]
    if named:
        found["parameters"] = named
    if endpoint.body is not None:
        reference = {"$ref": _REFS.format(name=endpoint.body.__name__)}
        found["requestBody"] = {"required": True, "content": _json(reference)}
    elif (path, method) in _OTHER_BODIES:
        found["requestBody"] = {"required": True, "content": _OTHER_BODIES[path, method]}
    if keyed and endpoint.scope not in (Scope.OPEN, Scope.PAGE):
        found["security"] = [{"key": []}, {"x-api-key": []}]
    return found


def _json(schema: dict[str, Any]) -> dict[str, Any]:
    return {"application/json": {"schema": schema}}


_ERROR = {
    "type": "object",
    "properties": {
        "error": {
            "type": "object",
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": {"type": ["string", "null"]},
                "code": {"type": ["string", "null"]},
            },
            "required": ["message", "type"],
        }
    },
    "required": ["error"],
}
