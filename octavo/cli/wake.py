"""`octavo wake`: a server that sleeps takes its memory again."""

import time
from typing import Annotated, Literal

from msgspec import field

from octavo.base.config import doc
from octavo.cli.command import Command
from octavo.cli.connect import ServerOptions


class WakeOptions(ServerOptions, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What comes back."""

    tags: Annotated[
        list[Literal["weights", "kv_cache"]], doc("Only this memory; may be given more than once. Unset: all.")
    ] = field(default_factory=list)


def run(options: WakeOptions) -> int:
    """Wake a server."""
    begin = time.perf_counter()
    query = "&".join(f"tags={tag}" for tag in options.tags)
    said = options.client().command(f"/wake_up?{query}")
    print(f"{said.get('status', 'awake')} after {time.perf_counter() - begin:.3f} s")
    return 0


COMMAND = Command(
    name="wake",
    summary="Make a server that sleeps take its memory again.",
    roots=(WakeOptions,),
    run=run,
    example="octavo wake",
)
