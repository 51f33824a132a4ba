"""From what the user named to a local path: a folder, a .gguf file, a demo model, a hub repository. No torch."""

import re
from difflib import get_close_matches
from pathlib import Path

from octavo.base.config import ModelConfig
from octavo.base.errors import ConfigError, ModelFileError
from octavo.weights.demo_models import demo_names, find_demo_model
from octavo.weights.guard import refuse_pickle
from octavo.weights.hub import fetch_repo

_HUB_NAME = re.compile(r"([A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95})(?::([\w./ -]{1,200}))?", re.ASCII)
MAX_NAME = 4096


def locate(config: ModelConfig, heads: Path | None = None) -> Path:
    """The model's folder or .gguf file, fetched if it is a demo model or on the hub. Raises ConfigError.

    `heads`: a folder for the header of a .gguf file on the hub, where that is all that is wanted.
    """
    name = config.model.strip()
    if not name:
        raise ConfigError(f"no model named; give a folder, a .gguf file, a hub name, or one of {_demos()}")
    if len(name) > MAX_NAME or not name.isprintable():
        raise ConfigError("the model's name is too long or holds control characters")
    path = local_path(name)
    if path is not None and path.is_dir():
        return path
    if path is not None:
        if not path.is_file():
            raise ModelFileError(str(path), "is neither a folder nor a regular file")
        refuse_pickle(path)
        if path.suffix.lower() != ".gguf":
            raise ModelFileError(str(path), "is not a .gguf file; for safetensors name the folder that holds it")
        return path
    demo = find_demo_model(name)
    if demo is not None:
        from octavo.weights.fetch import fetch_demo_model  # few starts fetch, and all would import it

        return fetch_demo_model(demo, Path(config.download_dir).expanduser() if config.download_dir else None)
    match = _HUB_NAME.fullmatch(name)
    if match is None or (match[2] is None and name.lower().endswith(".gguf")):
        near = get_close_matches(name, demo_names(), n=2, cutoff=0.5)
        hint = f"did you mean {' or '.join(near)}?" if near else f"known demo models: {_demos()}"
        raise ConfigError(f"{name[:200]!r} is no folder, no file, no demo model and no hub name (owner/name); {hint}")
    return fetch_repo(
        match[1],
        file=match[2] or ("" if config.load_format == "gguf" else None),
        revision=config.revision,
        download_dir=config.download_dir,
        weights=config.load_format != "dummy" or match[2] is not None,
        heads=heads,
    )


def locate_tokenizer(config: ModelConfig) -> Path:
    """The folder of a tokenizer named apart from the model. Raises ConfigError."""
    name = (config.tokenizer or "").strip()
    path = local_path(name)
    if path is not None and path.is_dir():
        return path
    match = _HUB_NAME.fullmatch(name)
    if path is not None or match is None or match[2]:
        raise ConfigError(f"tokenizer {name[:200]!r} is neither a folder nor a hub name (owner/name)")
    return fetch_repo(match[1], download_dir=config.download_dir, weights=False)


def local_path(name: str) -> Path | None:
    """What lies here under a name that the user gave; None for nothing, or a name that no path can have."""
    try:
        path = Path(name).expanduser()
        return path if path.exists() else None
    except (OSError, RuntimeError, ValueError):  # too long, of a home that nobody has, with a zero byte
        return None


def _demos() -> str:
    return ", ".join(demo_names())
