"""``/v1/models``: the served names, each a card of one model."""

from typing import Any

from octavo.base.errors import Unavailable
from octavo.serve.calls import Call, Reply, Service, json_reply


async def index(call: Call) -> Reply:
    """All served names. 503 while the model loads, so that a client waits for what it can use."""
    service = call.service
    return json_reply({"object": "list", "data": [_card(service, name) for name in service.names]})


async def show(call: Call) -> Reply:
    """One served name."""
    return json_reply(_card(call.service, call.service.check_model(call.scope["path_params"]["model"])))


def _card(service: Service, name: str) -> dict[str, Any]:
    if service.draining:
        raise Unavailable("The server is shutting down.")
    return {
        "id": name,
        "object": "model",
        "created": service.started_s,
        "owned_by": "octavo",
        "root": service.names[0],
        "parent": None,
        "max_model_len": service.backend.engine.ready.max_model_len,
    }
