"""What a model folder holds: which files are its weights, and its small JSON and template files. No torch."""

import os
from pathlib import Path
from typing import Any, Literal

from octavo.base.errors import ConfigError, ModelFileError
from octavo.weights.gguf_split import part_path
from octavo.weights.guard import PICKLE_SUFFIXES, read_json, read_text

Format = Literal["safetensors", "gguf", "dummy"]
INDEX = "model.safetensors.index.json"
MAX_SHARDS = 4096
MAX_NAME_BYTES = 255  # of a file, on every file system
TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
    "chat_template.json",
)
_TOKENIZERS = ("tokenizer.json", "tokenizer.model", "vocab.json")


def weight_files(folder: Path) -> tuple[Format, list[Path]]:
    """The format and the weight files of a folder, safetensors before GGUF. Raises ConfigError or ModelFileError."""
    if (folder / INDEX).is_file():
        return "safetensors", [folder / name for name in shard_names(folder / INDEX)]
    if (folder / "model.safetensors").is_file():
        return "safetensors", [folder / "model.safetensors"]
    files = sorted(path for path in folder.iterdir() if path.is_file())
    safetensors = [path for path in files if path.suffix == ".safetensors"]
    whole = [path for path in safetensors if not path.name.startswith("consolidated")]
    if safetensors:
        return "safetensors", whole or safetensors
    ggufs = [path for path in files if path.suffix == ".gguf" and not path.name.startswith("mmproj")]
    firsts = [path for path in ggufs if part_path(path, 1) == path]
    if len(firsts) > 1:
        names = ", ".join(path.name for path in firsts[:8])
        raise ConfigError(f"{folder} holds several GGUF models ({names}); name one of the files")
    if firsts:
        return "gguf", firsts
    pickles = [path for path in files if path.suffix.lower() in PICKLE_SUFFIXES]
    if pickles:
        raise ModelFileError(
            str(pickles[0]), "is a pickle checkpoint, which can run code when opened; convert it to safetensors"
        )
    raise ConfigError(f"{folder} holds no weights (*.safetensors or *.gguf); --load-format dummy makes random ones")


def shard_map(index: Path) -> dict[str, str]:
    """Tensor name -> file name out of a sharded checkpoint's index, each a plain name of a file in the same folder."""
    weight_map = read_json(index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise ModelFileError(str(index), "must hold a weight_map of tensor names to file names")
    for shard in set(map(str, weight_map.values())):
        plain = shard.endswith(".safetensors") and "\0" not in shard and "/" not in shard and "\\" not in shard
        if not plain or shard.startswith(".") or len(os.fsencode(shard)) > MAX_NAME_BYTES:
            raise ModelFileError(
                str(index), f"names the shard {shard[:80]!r}, which is no plain .safetensors file name"
            )
    return {name: str(shard) for name, shard in weight_map.items()}


def shard_names(index: Path) -> list[str]:
    """The shards of an index in order; each must be there."""
    names = sorted(set(shard_map(index).values()))
    if len(names) > MAX_SHARDS:
        raise ModelFileError(str(index), f"names {len(names)} shards, allowed are {MAX_SHARDS}")
    missing = [name for name in names if not (index.parent / name).is_file()]
    if missing:
        raise ModelFileError(str(index), f"names {missing[0]!r}, which is missing ({len(missing)} of {len(names)} are)")
    return names


def read_config(folder: Path) -> dict[str, Any]:
    """config.json. Pointers to code in the repository (auto_map) are dropped: Octavo runs none."""
    path = folder / "config.json"
    if not path.is_file():
        raise ConfigError(f"{folder} holds no config.json, so it is no model folder")
    config = read_json(path, limit=4 << 20)
    config.pop("auto_map", None)
    return config


def read_generation_config(folder: Path) -> dict[str, Any]:
    path = folder / "generation_config.json"
    return read_json(path, limit=1 << 20) if path.is_file() else {}


def read_chat_template(folder: Path) -> str | None:
    """The folder's chat template: its own file first, else the tokenizer's; the default one of several."""
    jinja = folder / "chat_template.jinja"
    if jinja.is_file():
        return read_text(jinja)
    for name in ("chat_template.json", "tokenizer_config.json"):
        if (folder / name).is_file():
            template = _default(read_json(folder / name).get("chat_template"))
            if template is not None:
                return template
    return None


def _default(value: object) -> str | None:
    """A template given as a string, or as a list of ``{"name", "template"}``."""
    if isinstance(value, str):
        return value
    named: dict[str, str] = {}
    for item in value if isinstance(value, list) else []:
        if isinstance(item, dict) and isinstance(item.get("template"), str):
            named.setdefault(str(item.get("name")), item["template"])
    return named.get("default") or next(iter(named.values()), None)


def has_tokenizer(folder: Path) -> bool:
    return any((folder / name).is_file() for name in _TOKENIZERS)
