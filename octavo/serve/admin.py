"""What an operator may ask of a running server. Behind the scope admin, or the loopback port of ``--admin-port``."""

from octavo.serve.calls import Call, Reply, json_reply


async def reset_prefix_cache(call: Call) -> Reply:
    """Forgets all cached prefixes; running requests keep what they share."""
    await call.service.backend.engine.control("reset_prefix_cache")
    return json_reply({"status": "ok"})
