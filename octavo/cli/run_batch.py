"""`octavo run-batch MODEL -i IN -o OUT`: a file of requests answered by a model in this process."""

import asyncio
import sys
from pathlib import Path
from typing import Annotated

from msgspec import Struct

from octavo.base.config import EngineConfig, doc
from octavo.base.errors import ConfigError
from octavo.cli.command import Command, need_model


class BatchOptions(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The files of a batch."""

    input_file: Annotated[str | None, doc("File of requests in OpenAI's batch form, one a line.")] = None
    output_file: Annotated[str | None, doc("File that the answers go to, in the order of the requests.")] = None
    concurrency: Annotated[int, doc("Requests that run at once.", ge=1, le=65_536)] = 256


def run(options: BatchOptions, engine: EngineConfig) -> int:
    """Answer a file. 0 when every line had an answer with a status below 400."""
    need_model(engine, "run-batch MODEL -i IN -o OUT")
    if options.input_file is None or options.output_file is None:
        raise ConfigError("run-batch needs -i FILE and -o FILE")
    from octavo.serve.batches.offline import journal_of, part_of, run_file
    from octavo.serve.start import launch

    source, target = Path(options.input_file).expanduser(), Path(options.output_file).expanduser()
    if not source.is_file():
        raise ConfigError(f"--input-file {source}: no such file")
    if not target.absolute().parent.is_dir():
        raise ConfigError(f"--output-file {target}: its folder does not exist")
    if target.exists() and not target.is_file():
        raise ConfigError(f"--output-file {target} is a {'folder' if target.is_dir() else 'device'}, not a file")
    for path in (target, journal_of(target), part_of(target)):
        if path.exists() and path.samefile(source):
            raise ConfigError(f"--output-file {target}: the answers would go over the requests in {source}")
    done = asyncio.run(run_file(engine, source, target, concurrency=options.concurrency, launcher=launch))
    failed = f", {done.total - done.ok} of them with errors" if done.ok < done.total else ""
    print(f"octavo: {done.total} lines answered{failed}; {target}", file=sys.stderr)
    return 0 if done.ok == done.total else 1


COMMAND = Command(
    name="run-batch",
    summary="Answer the requests of a file, without a server.",
    roots=(BatchOptions, EngineConfig),
    run=run,
    positional="model",
    example="octavo run-batch Qwen/Qwen2.5-0.5B-Instruct -i requests.jsonl -o answers.jsonl",
)
