"""Everything about a model that can be known before a weight is read. Imports without torch.

`read_model` turns what the user named into local files, detects their format, and reads the configs into an
Architecture. Nothing is trusted: sizes are bounded, pickle is refused, no code of a repository is ever run.
"""

from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec

from octavo.base.config import LoadFormat, ModelConfig
from octavo.base.errors import ConfigError
from octavo.models.arch import Architecture
from octavo.weights import folder as folders
from octavo.weights.demo_models import find_demo_model
from octavo.weights.folder import Format
from octavo.weights.gguf import GgufFile
from octavo.weights.gguf_config import gguf_config, gguf_generation_config
from octavo.weights.gguf_split import read_gguf_model
from octavo.weights.guard import read_text, refuse_pickle
from octavo.weights.locate import local_path, locate, locate_tokenizer


@dataclass(frozen=True)
class ModelFiles:
    """A model's local files and what they say."""

    path: Path  # the folder, or the .gguf file
    format: Format
    config: dict[str, Any]  # as config.json has it, for GGUF too
    generation_config: dict[str, Any]  # as generation_config.json; empty if there is none
    arch: Architecture
    tokenizer_dir: Path | None  # None: the tokenizer is in the GGUF file, or there is none
    gguf: GgufFile | None
    chat_template: str | None
    weight_bytes: int  # of the files; for dummy weights, what they will take in the model's own dtype
    weight_files: tuple[Path, ...] = ()


def read_model(config: ModelConfig) -> ModelFiles:
    """Resolve, fetch if need be, and read. Raises ConfigError or ModelFileError with one line."""
    return _read(config, locate(config))


def _read(config: ModelConfig, path: Path) -> ModelFiles:
    if path.is_file():
        files = _from_gguf(path, config.load_format)
    else:
        files = _from_folder(path, config.load_format)
    if config.tokenizer:
        files = replace(files, tokenizer_dir=locate_tokenizer(config))
        assert files.tokenizer_dir is not None
        own = folders.read_chat_template(files.tokenizer_dir)
        files = replace(files, chat_template=own or files.chat_template)
    if config.chat_template:
        template = local_path(config.chat_template)
        if template is None or not template.is_file():
            raise ConfigError(f"chat template {config.chat_template!r} is not a file")
        files = replace(files, chat_template=read_text(template))
        if not files.chat_template:
            raise ConfigError(f"chat template {config.chat_template!r} is empty")
    return files


def read_configs(config: ModelConfig) -> ModelFiles:
    """As `read_model`, but no weights are brought or needed: a folder may lack them, of a hub repository only the
    small files come, and of a .gguf file there its header. The paths of what came so are gone afterwards."""
    bare = config
    if config.load_format == "auto" and not _has_weights(config):
        bare = msgspec.structs.replace(config, load_format="dummy")
    with TemporaryDirectory(prefix="octavo-") as folder:
        path = locate(bare, Path(folder))
        return _read(config if path.suffix == ".gguf" else bare, path)


def _has_weights(config: ModelConfig) -> bool:
    """Whether the weights lie here already, or must be fetched to know anything."""
    path = local_path(config.model)
    if path is not None and path.is_dir():
        return any(path.glob("*.safetensors")) or any(path.glob("*.gguf"))
    return path is not None or find_demo_model(config.model) is not None or ":" in config.model


def _from_folder(folder: Path, load_format: LoadFormat) -> ModelFiles:
    if load_format == "dummy":
        found: tuple[Format, list[Path]] = ("dummy", [])
    else:
        found = folders.weight_files(folder)
    kind, paths = found
    for path in paths:
        refuse_pickle(path)
    if load_format not in ("auto", kind):
        raise ConfigError(f"{folder} holds {kind} weights, but --load-format is {load_format}")
    if kind == "gguf":
        return _from_gguf(paths[0], load_format)
    config = folders.read_config(folder)
    generation = folders.read_generation_config(folder)
    arch = _architecture(config, generation)
    total = sum(path.stat().st_size for path in paths) if paths else _dummy_bytes(arch)
    return ModelFiles(
        path=folder,
        format=kind,
        config=config,
        generation_config=generation,
        arch=arch,
        tokenizer_dir=folder if folders.has_tokenizer(folder) else None,
        gguf=None,
        chat_template=folders.read_chat_template(folder),
        weight_bytes=total,
        weight_files=tuple(paths),
    )


def _from_gguf(path: Path, load_format: LoadFormat) -> ModelFiles:
    if load_format == "safetensors":
        raise ConfigError(f"{path} is a GGUF file, but --load-format is safetensors")
    refuse_pickle(path)
    gguf = read_gguf_model(path)
    config = gguf_config(gguf)
    generation = gguf_generation_config(gguf, config)
    template = gguf.metadata.get("tokenizer.chat_template")
    arch = _architecture(config, generation)
    return ModelFiles(
        path=path,
        format="dummy" if load_format == "dummy" else "gguf",
        config=config,
        generation_config=generation,
        arch=arch,
        tokenizer_dir=None,
        gguf=gguf,
        chat_template=template if isinstance(template, str) and template else None,
        weight_bytes=_dummy_bytes(arch) if load_format == "dummy" else gguf.file_bytes,
        weight_files=tuple(sorted({tensor.path for tensor in gguf.tensors.values()} | {path})),
    )


def _architecture(config: dict[str, Any], generation: dict[str, Any]) -> Architecture:
    """The Architecture, with the ends that generation_config.json adds: chat models name their turn end only there."""
    from octavo.models.registry import read_architecture  # above this package; it needs only the dict

    arch: Architecture = read_architecture(config)
    ends = generation.get("eos_token_id")
    listed = ends if isinstance(ends, list) else [ends]
    known = [end for end in listed if type(end) is int and 0 <= end < arch.vocab_size]
    return msgspec.structs.replace(arch, eos_token_ids=tuple(dict.fromkeys((*known, *arch.eos_token_ids))))


def _dummy_bytes(arch: Architecture) -> int:
    return arch.num_parameters() * (4 if arch.dtype == "float32" else 2)
