"""A batch without a server: the same work, from a file to a file."""

import os
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

from octavo.base.config import EngineConfig, LimitsConfig, OctavoConfig, ServeConfig
from octavo.base.errors import EngineError
from octavo.serve.batches.journal import Journal
from octavo.serve.batches.work import Work
from octavo.serve.calls import Backend, Service
from octavo.serve.limits import Limits

FOREVER_S = 7 * 86_400.0
MAX_LINE = 64 << 20


@dataclass(frozen=True)
class Done:
    """Lines with an answer, and those of them without an error."""

    total: int
    ok: int


async def run_file(
    engine: EngineConfig,
    source: Path,
    target: Path,
    *,
    concurrency: int,
    launcher: Callable[[OctavoConfig], Awaitable[Backend]],
) -> Done:
    """Answers every line of `source` into `target`. What an interrupted run had done is not done again.

    Raises what launching raises, and EngineError when the engine ends before the work does.
    """
    serve = ServeConfig(
        no_response_store=True,
        no_files=True,
        batch_concurrency=concurrency,
        request_timeout=FOREVER_S,
        max_body_bytes=MAX_LINE,
        log_level="warning",
        limits=LimitsConfig(queue_timeout=0),
    )
    config = OctavoConfig(engine=engine, serve=serve)
    service = Service(config, Limits(serve, 1 << 30))
    journal = Journal(journal_of(target))
    try:
        backend = await launcher(config)
        service.attach(backend)
        try:
            if not await Work(service, source, journal).run():
                raise EngineError(f"the engine has ended; the same command goes on after {len(journal)} lines")
        finally:
            await backend.engine.close()
        _write(journal, target)
    except BaseException:
        journal.close(remove=not len(journal))
        raise
    finally:
        service.close()
    done = Done(len(journal), journal.ok)
    journal.close(remove=True)
    return done


def journal_of(target: Path) -> Path:
    """Where the answers are kept while not all are there."""
    return target.with_name(target.name + ".journal")


def part_of(target: Path) -> Path:
    """What becomes `target` once it is whole."""
    return target.with_name(target.name + ".part")


def _write(journal: Journal, target: Path) -> None:
    """All answers at once into place: a reader never sees half of them."""
    part = part_of(target)
    with part.open("wb") as file:
        file.writelines(journal.rows())
    os.replace(part, target)
