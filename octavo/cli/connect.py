"""Options and connection that `chat` and `complete` share: a server that runs, or one of their own."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any

from msgspec import Struct

from octavo.base.config import EngineConfig, doc
from octavo.base.errors import ConfigError
from octavo.cli.client import Client

DEFAULT_URL = "http://127.0.0.1:8000"


class ServerOptions(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which server a command is for."""

    url: Annotated[str | None, doc(f"A running server. Unset: {DEFAULT_URL}.")] = None
    api_key: Annotated[str | None, doc("Key sent to the server as a bearer token.")] = None

    def client(self) -> Client:
        """A client of that server."""
        return Client(self.url or DEFAULT_URL, self.api_key)


class TalkOptions(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How to reach a model and how it should answer."""

    url: Annotated[str | None, doc(f"A running server. Unset: {DEFAULT_URL}, or one started for MODEL.")] = None
    api_key: Annotated[str | None, doc("Key sent to the server as a bearer token.")] = None
    temperature: Annotated[float, doc("Randomness; 0 always takes the likeliest token.", ge=0, le=2)] | None = None
    top_p: Annotated[float, doc("Share of probability to draw from.", gt=0, le=1)] | None = None
    max_tokens: Annotated[int, doc("Longest answer, in tokens. Unset: the server's choice.", ge=1)] | None = None
    stats: Annotated[bool, doc("Say after each answer how fast it came.")] = True

    def sampling(self) -> dict[str, Any]:
        """The request fields that were set."""
        fields = {"temperature": self.temperature, "top_p": self.top_p, "max_tokens": self.max_tokens}
        return {name: value for name, value in fields.items() if value is not None}


@contextmanager
def connection(options: TalkOptions, engine: EngineConfig) -> Iterator[tuple[Client, str]]:
    """A client and the model name to ask for. Starts a server when a model is named and no address is."""
    if options.url is None and engine.model.model:
        from octavo.cli.own_server import own_server

        with own_server(engine) as client:
            yield client, _model_name(client, "")
        return
    client = Client(options.url or DEFAULT_URL, options.api_key)
    yield client, _model_name(client, engine.model.model)


def _model_name(client: Client, wanted: str) -> str:
    names = client.models()
    if not names:
        raise ConfigError(f"{client.url} serves no model")
    if wanted and wanted not in names:
        raise ConfigError(f"{client.url} serves {', '.join(names)}, not {wanted[:80]!r}")
    return wanted or names[0]
