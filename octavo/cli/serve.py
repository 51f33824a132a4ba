"""`octavo serve MODEL`: the HTTP server."""

from octavo.base.config import OctavoConfig
from octavo.cli.command import Command, need_model


def run(config: OctavoConfig) -> int:
    """Serve until told to stop."""
    need_model(config.engine, "serve MODEL")
    from octavo.serve.main import run as serve

    return serve(config) or 0


COMMAND = Command(
    name="serve",
    summary="Serve a model over an OpenAI-compatible HTTP API.",
    roots=(OctavoConfig,),
    run=run,
    positional="model",
    example="octavo serve Qwen/Qwen2.5-0.5B-Instruct --max-model-len 8k --port 8000",
)
