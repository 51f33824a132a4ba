"""``/plan``: what start-up fitted to this machine, and why."""

from octavo.serve.calls import Call, Reply, json_reply
from octavo.serve.facts import plan_facts


async def show(call: Call) -> Reply:
    """Context, KV cache, batch bounds, the reasons for them, and how long each phase of the start took."""
    service = call.service
    facts = plan_facts(service.names, service.config.engine, service.backend.engine.ready)
    return json_reply(facts | {"startup_seconds": service.metrics.phases})
