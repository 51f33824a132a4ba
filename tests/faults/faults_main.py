"""`octavo serve` over an engine that fails on purpose; what is to go wrong comes as JSON in the one argument."""

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parents[1]), str(HERE.parent / "api"), str(HERE.parent / "unit" / "engine")]

import itertools  # noqa: E402
import os  # noqa: E402
import threading  # noqa: E402
import time  # noqa: E402
from typing import Any  # noqa: E402

import engine_fakes  # noqa: E402
import faults_kit  # noqa: E402
import msgspec  # noqa: E402
from api_live import MODEL  # noqa: E402
from api_textkit import text_processor, tokenizer  # noqa: E402

from octavo.base.config import EngineConfig, LimitsConfig, ModelConfig, OctavoConfig, RecoveryConfig, ServeConfig  # noqa: E402
from octavo.base.errors import ConfigError  # noqa: E402
from octavo.engine.assemble import Engine  # noqa: E402
from octavo.engine.client import EngineClient  # noqa: E402
from octavo.serve.calls import Backend  # noqa: E402
from octavo.serve.main import run  # noqa: E402
from octavo.text.structured import vocabulary_of  # noqa: E402


def wide(config: EngineConfig) -> Engine:
    """With room for every token of the tests' tokenizer."""
    engine_fakes.VOCAB = faults_kit.VOCAB = tokenizer().vocab_size
    return faults_kit.assemble(config)


def jump_about() -> None:
    """The wall clock goes a day ahead, a day back, and so on."""
    real, shifts = time.time, itertools.cycle((86_400.0, -86_400.0, 0.0))
    shift = 0.0
    time.time = lambda: real() + shift

    def jump() -> None:
        nonlocal shift
        for shift in shifts:  # noqa: B007
            time.sleep(0.05)

    threading.Thread(target=jump, daemon=True).start()


def main(orders: str) -> int:
    given: dict[str, Any] = msgspec.json.decode(orders)
    if given.get("file_bytes"):
        import resource

        resource.setrlimit(resource.RLIMIT_FSIZE, (given["file_bytes"], resource.RLIM_INFINITY))
    if given.get("log_to"):
        os.dup2(os.open(given["log_to"], os.O_WRONLY), 2)
    if given.get("jumps"):
        jump_about()

    async def launcher(config: OctavoConfig) -> Backend:
        os.environ["PYTHONPATH"] = os.pathsep.join(sys.path[:4])
        engine = await EngineClient.launch(
            engine_fakes.config(faults=given.get("faults", []), **given.get("fake", {})),
            recovery=config.serve.recovery,
            assembly="faults_main:wide",
            log_level="error",
        )
        vocabulary = vocabulary_of(tokenizer())
        assert vocabulary is not None
        engine.provide(vocabulary)
        return Backend(engine, text_processor(engine.ready.max_model_len))

    serve = {"no_response_store": True, "no_files": True, "log_level": "error", **given.get("serve", {})}
    try:
        return run(the_config(given, serve), launcher)
    except ConfigError as error:
        print(f"octavo: {error}", file=sys.stderr)
        return 1


def the_config(given: dict[str, Any], serve: dict[str, Any]) -> OctavoConfig:
    recovery = msgspec.convert(given.get("recovery", {}), RecoveryConfig)
    limits = msgspec.convert(given.get("limits", {}), LimitsConfig)
    return OctavoConfig(
        engine=EngineConfig(model=ModelConfig(model="/nowhere/tiny", served_model_name=[MODEL])),
        serve=ServeConfig(port=given["port"], recovery=recovery, limits=limits, **serve),
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
