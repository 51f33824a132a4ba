"""What the server keeps on disk: responses, files, batches. Everything here is opened when first asked for."""

from collections.abc import Callable

from octavo.base.config import ServeConfig
from octavo.base.errors import ConfigError
from octavo.serve.store.batches import BatchStore
from octavo.serve.store.files import FileStore
from octavo.serve.store.place import Place
from octavo.serve.store.responses import ResponseStore


class Stores:
    """The stores of one server."""

    def __init__(self, config: ServeConfig) -> None:
        """Raises ConfigError for a place that was named and cannot be used; the usual place is tried when needed."""
        self.responses = ResponseStore(
            None if config.no_response_store else Place.of(config.response_store, config.port, "responses.sqlite"),
            max_age_s=config.response_store_days * 86_400,
            max_bytes=config.response_store_bytes,
        )
        folder = None if config.no_files else Place.of(config.files_dir, config.port, "files")
        self.files = FileStore(folder, max_file=config.max_file_bytes, max_total=config.max_files_bytes)
        self.batches = BatchStore(self.files)
        if config.response_store is not None:
            _open("--response-store", self.responses.open_now)
        if config.files_dir is not None:
            _open("--files-dir", self.files.open_now)

    def close(self) -> None:
        """Closes what was opened."""
        self.responses.close()
        self.files.close()


def _open(flag: str, call: Callable[[], None]) -> None:
    try:
        call()
    except ConfigError as exc:
        raise ConfigError(f"{flag}: {exc}") from exc


__all__ = ["Stores"]
