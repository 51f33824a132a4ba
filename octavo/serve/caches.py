"""What an operator may do about caches."""

from octavo.serve.calls import Call, Reply, json_reply


async def reset_prefix_cache(call: Call) -> Reply:
    """Forgets all cached prefixes; running requests keep what they share."""
    await call.service.backend.engine.control("reset_prefix_cache")
    return json_reply({"status": "ok"})
