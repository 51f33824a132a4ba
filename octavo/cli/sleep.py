"""`octavo sleep`: a running server gives its device's memory back until `octavo wake`."""

from typing import Annotated, Literal
from urllib.parse import urlencode

from octavo.base.config import doc
from octavo.base.human import format_bytes
from octavo.cli.command import Command
from octavo.cli.connect import ServerOptions


class SleepOptions(ServerOptions, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is given back, and what becomes of the requests that run."""

    level: Annotated[
        int, doc("1 keeps the weights in host memory, 2 drops them and reads the files again on waking.", ge=1, le=2)
    ] = 1
    mode: Annotated[
        Literal["abort", "wait", "keep"] | None,
        doc("End running requests, wait for them, or set them aside to go on later. Unset: wait, then set aside."),
    ] = None
    timeout: Annotated[int, doc("Seconds to wait for running requests.", ge=0, le=3600)] | None = None


def run(options: SleepOptions) -> int:
    """Put a server to sleep."""
    given = {"level": options.level, "mode": options.mode, "timeout": options.timeout}
    query = urlencode({name: value for name, value in given.items() if value is not None})
    said = options.client().command(f"/sleep?{query}", timeout_s=4300.0)
    freed, seconds = int(said.get("freed_bytes", 0)), float(said.get("seconds", 0.0))
    print(f"asleep at level {said.get('level', options.level)}: {format_bytes(freed)} given back in {seconds:.3f} s")
    return 0


COMMAND = Command(
    name="sleep",
    summary="Make a running server give its device's memory back: weights and KV cache.",
    roots=(SleepOptions,),
    run=run,
    example="octavo sleep --level 2",
)
