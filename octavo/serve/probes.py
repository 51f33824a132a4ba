"""Answers about the server itself: health, readiness, metrics, version, the page."""

from octavo import __version__
from octavo.base.errors import OctavoError, Unavailable, asleep
from octavo.serve import web
from octavo.serve.calls import Call, Reply, json_reply
from octavo.serve.metrics import CONTENT_TYPE


async def health(call: Call) -> Reply:
    """200 while the process is of use, loading and sleep included; 503 when the engine is gone for good."""
    if not call.service.alive:
        raise Unavailable("The engine is not running.")
    return json_reply({"status": "asleep" if call.service.asleep else "ok"})


async def ready(call: Call) -> Reply:
    """200 when a request sent now would be served."""
    try:
        call.service.backend  # noqa: B018 - raises while there is none
    except OctavoError as exc:
        raise Unavailable(str(exc) if isinstance(exc, Unavailable) else "The engine is not running.") from exc
    if not call.service.moving:
        raise Unavailable("The engine has not moved for a while.")
    if call.service.asleep and not call.service.wakes_by_itself:
        raise asleep(f"The engine is asleep (level {call.service.asleep}); POST /wake_up wakes it.")
    return json_reply({"status": "ready"})


async def metrics(call: Call) -> Reply:
    """Prometheus text."""
    return Reply(call.service.metrics.render(), kind=CONTENT_TYPE)


async def version(call: Call) -> Reply:  # noqa: ARG001 - one signature for all handlers
    """The package's version."""
    return json_reply({"version": __version__})


async def page(call: Call) -> Reply:  # noqa: ARG001
    """The chat page."""
    return web.reply()
