"""Answers about the server itself: health, readiness, what start-up settled, metrics, version, the page."""

from starlette.exceptions import HTTPException

from octavo import __version__
from octavo.base.errors import OctavoError, Unavailable, asleep
from octavo.serve import web
from octavo.serve.calls import STILL_S, Call, Reply, Service, json_reply
from octavo.serve.facts import plan_facts
from octavo.serve.metrics import CONTENT_TYPE
from octavo.serve.query import Query


async def health(call: Call) -> Reply:
    """200 while the process is of use, loading, restarting and sleep included; 503 when the engine is gone for good.

    With ``?progress`` another question is answered: whether the engine's steps go on; ``?progress=5``: whether the
    last was at most five seconds ago.
    """
    if not call.service.alive:
        raise Unavailable("The engine is not running.")
    query = Query(call.scope)
    if query.has("progress"):
        return progress(call.service, query.whole("progress", 1, 3600) or STILL_S)
    return json_reply({"status": "asleep" if call.service.asleep else "ok"})


async def ready(call: Call) -> Reply:
    """200 when a request sent now would be served at once."""
    try:
        call.service.backend  # noqa: B018 - raises while there is none
    except OctavoError as exc:
        raise Unavailable(str(exc) if isinstance(exc, Unavailable) else "The engine is not running.") from exc
    if call.service.restarting:
        raise Unavailable("The engine is being restarted.")
    if not call.service.moving:
        raise Unavailable("The engine has not moved for a while.")
    if call.service.asleep and not call.service.wakes_by_itself:
        raise asleep(f"The engine is asleep (level {call.service.asleep}); POST /wake_up wakes it.")
    return json_reply({"status": "ready"})


def progress(service: Service, patience_s: float) -> Reply:
    """200 while each piece of work is followed by the next, or there is none."""
    if service.loading:
        raise Unavailable("The model is still loading.")
    if service.restarting:
        raise Unavailable("The engine is being restarted.")
    still_s = service.still_s
    if still_s > patience_s:
        raise Unavailable(f"The engine has work and has done no step for {still_s:.0f} s.")
    stats = service.stats()
    return json_reply(
        {
            "status": "working" if stats.running or stats.waiting or still_s else "idle",
            "steps": stats.steps,
            "seconds_since_step": round(still_s, 3),
            "engine_restarts": service.survival().restarts,
        }
    )


async def plan(call: Call) -> Reply:
    """What start-up fitted to this machine and why: context, KV cache, batch bounds, how long each phase took."""
    service = call.service
    facts = plan_facts(service.names, service.config.engine, service.backend.engine.ready)
    return json_reply(facts | {"startup_seconds": service.metrics.phases})


async def metrics(call: Call) -> Reply:
    """Prometheus text."""
    return Reply(call.service.metrics.render(), kind=CONTENT_TYPE)


async def version(call: Call) -> Reply:  # noqa: ARG001 - one signature for all handlers
    """The package's version."""
    return json_reply({"version": __version__})


async def page(call: Call) -> Reply:
    """The chat page; 404 with --no-ui."""
    if call.service.config.serve.no_ui:
        raise HTTPException(404)
    return web.reply()
