"""Runs the batches of a server, from the file that was uploaded to the files of answers, and again after a restart."""

import asyncio
import logging
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from octavo.base.errors import NotFound, OctavoError, Overloaded
from octavo.serve.batches.journal import Journal
from octavo.serve.batches.lines import count_lines
from octavo.serve.batches.work import Work
from octavo.serve.calls import Service
from octavo.serve.store.batches import Batch

log = logging.getLogger("octavo.serve")

MAX_LINES = 100_000
SAVE_S = 2.0
COPY_ROWS = 256


@dataclass
class BatchRun:
    """A running batch, for those who look at it or cancel it."""

    owner: str
    batch: Batch
    work: Work | None = None

    def refresh(self) -> None:
        """Brings the counts up to date."""
        if self.work is not None:
            counts, journal = self.batch.request_counts, self.work.journal
            counts.completed, counts.failed = journal.ok, len(journal) - journal.ok

    def cancel(self) -> None:
        """Ends it; what has been answered is kept."""
        if self.batch.status in ("validating", "in_progress"):
            self.batch.turn("cancelling")
        if self.work is not None and self.batch.status == "cancelling":
            self.work.stop()


def job_name(id: str) -> str:
    """The name of a batch's job."""
    return f"batch:{id}"


def find_run(service: Service, owner: str, id: str) -> BatchRun | None:
    """The running batch, if it is the caller's."""
    run = service.jobs.get(job_name(id))
    return run if isinstance(run, BatchRun) and run.owner == owner else None


def start(service: Service, owner: str, tenant: str, batch: Batch) -> BatchRun:
    """Begins a batch, or goes on with it."""
    run = BatchRun(owner, batch)
    service.jobs.start(job_name(batch.id), _run(service, tenant, run), run, waits=False)
    return run


async def resume(service: Service) -> None:
    """Goes on with what an earlier server left unfinished."""
    if not service.stores.files.exists:
        return
    try:
        unfinished = await service.stores.batches.unfinished()
    except NotFound:
        return  # the folder cannot be used; whoever asks for a file hears of it
    for owner, batch in unfinished:
        log.info("going on with batch %s", batch.id)
        start(service, owner, service.keys.tenant_of(owner), batch)


async def _run(service: Service, tenant: str, run: BatchRun) -> None:
    batch, store = run.batch, service.stores.batches
    try:
        await _work(service, tenant, run)
    except OctavoError as exc:
        log.warning("batch %s failed: %s", batch.id, exc)
        _fail(batch, "batch_failed", str(exc))
    except OSError as exc:
        log.error("batch %s failed", batch.id, exc_info=exc)
        _fail(batch, "batch_failed", "The server could not read or write the batch's files.")
    except Exception as exc:  # a bug: whoever waits for the batch must not wait for ever
        log.error("batch %s failed", batch.id, exc_info=exc)
        _fail(batch, "batch_failed", "The server could not go on with this batch.")
    await store.save(batch)
    if not batch.open:
        _journal_of(service, batch).unlink(missing_ok=True)


async def _work(service: Service, tenant: str, run: BatchRun) -> None:
    batch, files = run.batch, service.stores.files
    source = files.path(await files.get(run.owner, batch.input_file_id))
    max_line = service.limits.max_body_bytes

    def count() -> int:
        with source.open("rb") as file:
            return count_lines(file, max_line)

    batch.request_counts.total = await asyncio.to_thread(count)
    if not 0 < batch.request_counts.total <= MAX_LINES:
        _fail(batch, "invalid_file", f"The file must have between 1 and {MAX_LINES} requests, one a line.")
        return
    journal = await asyncio.to_thread(Journal, _journal_of(service, batch))
    counted = 0

    def check_room(more: int) -> None:
        """Overloaded when `more` bytes are too many; the journal takes room as a file that is being written."""
        nonlocal counted
        files.writing += journal.size - counted
        counted = journal.size
        files.check_room(more)

    run.work = Work(
        service,
        source,
        journal,
        endpoint=batch.endpoint,
        owner=run.owner,
        tenant=tenant,
        deadline=batch.expires_at or float("inf"),
        check_room=check_room,
    )
    try:
        if batch.status == "validating":
            batch.turn("in_progress")
        if batch.status == "cancelling":
            run.work.stop()
        try:
            finished = await _watched(service, run, run.work)
        except Overloaded as exc:  # no room for more answers; those that are there are kept
            await _keep_answers(service, run, journal)
            _fail(batch, "no_room", str(exc))
            return
        if not finished and not run.work.stopped:
            return  # the server ends; the next one goes on
        await _finish(service, run, journal, expired=run.work.expired)
    finally:
        run.refresh()
        run.work = None
        files.writing -= counted
        journal.close()


def _journal_of(service: Service, batch: Batch) -> Path:
    folder = service.stores.files.folder
    assert folder is not None, "there are batches only where there are files"
    return folder / f"{batch.id}.journal"


async def _watched(service: Service, run: BatchRun, work: Work) -> bool:
    """Runs it and writes its counts down now and then."""
    task = asyncio.create_task(work.run())
    try:
        while not task.done():
            run.refresh()
            await service.stores.batches.save(run.batch)
            await asyncio.wait({task}, timeout=SAVE_S)
        return task.result()
    finally:
        task.cancel()
        await asyncio.wait({task})


async def _finish(service: Service, run: BatchRun, journal: Journal, *, expired: bool) -> None:
    batch = run.batch
    run.refresh()
    cancelled = batch.status == "cancelling"
    if not cancelled:
        batch.turn("finalizing")
    await _keep_answers(service, run, journal)
    batch.turn("cancelled" if cancelled else "expired" if expired else "completed")


async def _keep_answers(service: Service, run: BatchRun, journal: Journal) -> None:
    run.batch.output_file_id = await _copy(service, run, journal, "output", ok=True)
    run.batch.error_file_id = await _copy(service, run, journal, "errors", ok=False)


async def _copy(service: Service, run: BatchRun, journal: Journal, kind: str, *, ok: bool) -> str | None:
    """The good or the bad answers as a file; None when there are none."""
    rows = journal.rows(ok)
    upload = None
    try:
        while some := await asyncio.to_thread(_some, rows):
            if upload is None:
                upload = await service.stores.files.create(
                    run.owner, f"{run.batch.id}_{kind}.jsonl", "batch_output", bounded=False
                )
            await upload.write(b"".join(some))
        return (await upload.finish()).id if upload else None
    except BaseException:
        if upload is not None:
            upload.abort()
        raise


def _some(rows: Iterable[bytes]) -> list[bytes]:
    return list(islice(rows, COPY_ROWS))


def _fail(batch: Batch, code: str, message: str) -> None:
    batch.errors = {"object": "list", "data": [{"code": code, "message": message, "line": None, "param": None}]}
    batch.turn("failed")
