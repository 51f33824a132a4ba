"""`octavo serve` with a fake engine: ``fake_main.py PORT [slow|broken|dies|engine] [shutdown_s]``."""

import asyncio
import os
import sys
from pathlib import Path

HERE = Path(__file__).parent
ENGINE_FAKES = HERE.parent / "unit" / "engine"
sys.path[:0] = [str(HERE), str(HERE.parents[1]), str(ENGINE_FAKES)]

from api_live import backend, config  # noqa: E402
from msgspec.structs import replace  # noqa: E402

from octavo.base.config import EngineConfig, OctavoConfig  # noqa: E402
from octavo.base.errors import ConfigError  # noqa: E402
from octavo.engine.assemble import Engine  # noqa: E402
from octavo.serve.calls import Backend  # noqa: E402
from octavo.serve.main import run  # noqa: E402


def main(port: str, mode: str = "", shutdown_s: str = "5") -> int:
    async def launcher(_: OctavoConfig) -> Backend:
        if mode == "slow":
            await asyncio.sleep(2)
        if mode == "broken":
            await asyncio.sleep(0.1)
            raise ConfigError("unknown architecture 'Nonsense'; did you mean LlamaForCausalLM?")
        if mode == "engine":
            return await with_engine_process()
        back = backend(1 << 20)
        back.engine.delay_s = 0.05  # type: ignore[attr-defined]
        if mode == "dies":
            asyncio.get_running_loop().call_later(0.5, setattr, back.engine, "dead", True)
        return back

    conf = config(disable_uvicorn_access_log=True)  # the tests read the lines
    conf = replace(conf, serve=replace(conf.serve, port=int(port), shutdown_timeout=float(shutdown_s)))
    try:
        return run(conf, launcher)
    except ConfigError as exc:
        print(f"octavo: {exc}", file=sys.stderr)
        return 1


async def with_engine_process() -> Backend:
    """A real client and engine process over a fake executor of 20 ms a step; its pid is told on standard error."""
    from engine_fakes import config as engine_config

    from octavo.engine.client import EngineClient

    os.environ["PYTHONPATH"] = os.pathsep.join([str(ENGINE_FAKES), str(HERE)])
    engine = await EngineClient.launch(engine_config(latency_s=0.02), assembly="fake_main:wide", log_level="error")
    print(f"engine {engine.pid}", file=sys.stderr, flush=True)
    return Backend(engine, backend(engine.ready.max_model_len).text)


def wide(config: EngineConfig) -> Engine:
    """The fake engine with room for every token of the test's tokenizer."""
    import engine_fakes

    engine_fakes.VOCAB = 512
    return engine_fakes.assemble(config)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
