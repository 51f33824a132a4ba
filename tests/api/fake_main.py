"""`octavo serve` in a process of its own with a fake engine: ``fake_main.py PORT [slow|broken|dies] [shutdown_s]``."""

import asyncio
import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[2])]

from api_live import backend, config  # noqa: E402
from msgspec.structs import replace  # noqa: E402

from octavo.base.config import OctavoConfig  # noqa: E402
from octavo.base.errors import ConfigError  # noqa: E402
from octavo.serve.calls import Backend  # noqa: E402
from octavo.serve.main import run  # noqa: E402


def main(port: str, mode: str = "", shutdown_s: str = "5") -> int:
    async def launcher(_: OctavoConfig) -> Backend:
        if mode == "slow":
            await asyncio.sleep(2)
        if mode == "broken":
            await asyncio.sleep(0.1)
            raise ConfigError("unknown architecture 'Nonsense'; did you mean LlamaForCausalLM?")
        back = backend(1 << 20)
        back.engine.delay_s = 0.05  # type: ignore[attr-defined]
        if mode == "dies":
            asyncio.get_running_loop().call_later(0.5, setattr, back.engine, "dead", True)
        return back

    conf = config()
    conf = replace(conf, serve=replace(conf.serve, port=int(port), shutdown_timeout=float(shutdown_s)))
    try:
        return run(conf, launcher)
    except ConfigError as exc:
        print(f"octavo: {exc}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
