"""A `tokenizers` back end from the files of a Hugging Face folder: tokenizer.json, or tokenizer.model, and what lies
beside it."""

from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

from tokenizers import AddedToken
from tokenizers import Tokenizer as Backend

from octavo.base.errors import ModelFileError
from octavo.text.gguf_tokenizer import GgufVocabulary, build_backend
from octavo.text.sentencepiece_model import read_keys
from octavo.weights.guard import read_json, read_text

_MAX_TOKENIZER_BYTES = 512 << 20
_MAX_JSON_BYTES = 64 << 20
_MAX_TEMPLATE_BYTES = 4 << 20
_UNSEEN = "\U0010fffd"  # a character that no vocabulary holds
_NAMED = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


class HfFolder:
    """tokenizer_config.json, special_tokens_map.json and the chat templates beside them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.config = _json(folder / "tokenizer_config.json")
        self._map = _json(folder / "special_tokens_map.json")

    def special_texts(self) -> dict[str, str]:
        """``bos_token`` and its kind -> text, as templates see them."""
        texts = {}
        for name in _NAMED:
            text = _content(self.config.get(name)) or _content(self._map.get(name))
            if text:
                texts[name] = text
        if self.pieces is not None:
            for name, key in (("bos_token", "bos"), ("eos_token", "eos"), ("unk_token", "unknown")):
                token = self.pieces.token_id(key)
                if token is not None:
                    texts.setdefault(name, self.pieces.tokens[token])
        return texts

    @cached_property
    def pieces(self) -> GgufVocabulary | None:
        """The vocabulary of tokenizer.model, where there is no tokenizer.json. Raises ModelFileError."""
        path = self.folder / "tokenizer.model"
        if (self.folder / "tokenizer.json").is_file() or not path.is_file():
            return None
        return GgufVocabulary(read_keys(path, self.config), str(path))

    def added(self) -> dict[int, tuple[str, bool]]:
        """Tokens beyond those of tokenizer.model: id -> text, and whether it is special."""
        found = {
            token: (text, True)
            for text, token in _json(self.folder / "added_tokens.json").items()
            if isinstance(token, int)
        }
        entries = self.config.get("added_tokens_decoder")
        for token, entry in entries.items() if isinstance(entries, dict) else ():
            text = _content(entry)
            if text and str(token).isdecimal() and len(token) < 10:
                found[int(token)] = (text, isinstance(entry, dict) and entry.get("special") is True)
        return found

    def extra_special(self) -> list[str]:
        """Further tokens that the config calls special."""
        lists = (
            self.config.get("additional_special_tokens"),
            self.config.get("extra_special_tokens"),
            self._map.get("additional_special_tokens"),
        )
        entries: list[Any] = []
        for group in lists:
            entries += group.values() if isinstance(group, dict) else group if isinstance(group, list) else []
        return [text for text in map(_content, entries) if text]

    def templates(self) -> dict[str, str]:
        """Chat templates by name; the plain one is ``default``. Files of their own win over the config's entry."""
        found = named_templates(self.config.get("chat_template"), str(self.folder / "tokenizer_config.json"))
        legacy = _json(self.folder / "chat_template.json").get("chat_template")
        found.update(named_templates(legacy, str(self.folder / "chat_template.json")))
        single = self.folder / "chat_template.jinja"
        if single.is_file():
            found["default"] = read_text(single, _MAX_TEMPLATE_BYTES)
        extra = self.folder / "additional_chat_templates"
        for path in sorted(extra.glob("*.jinja"))[:32] if extra.is_dir() else []:
            found[path.stem] = read_text(path, _MAX_TEMPLATE_BYTES)
        return found


def named_templates(value: Any, path: str) -> dict[str, str]:
    """The two forms of a config's ``chat_template``: a string, or a list of ``{name, template}``."""
    if value is None:
        return {}
    if isinstance(value, str):
        return {"default": value}
    if isinstance(value, list) and all(isinstance(entry, dict) for entry in value):
        return {str(entry.get("name")): str(entry.get("template")) for entry in value[:32]}
    raise ModelFileError(path, "chat_template should be a string or a list of named templates")


def load_backend(folder: HfFolder) -> Backend:
    """The back end with special tokens marked. Raises ModelFileError.

    tokenizer.json alone says whether bos or eos are added: transformers 5 ignores the config's flags beside one.
    """
    backend = _from_pieces(folder) if folder.pieces is not None else _from_json(folder.folder / "tokenizer.json")
    _mark_special(backend, [*folder.special_texts().values(), *folder.extra_special()])
    return backend


def _from_json(path: Path) -> Backend:
    if not path.is_file():
        raise ModelFileError(
            str(path),
            "no such file; a model folder needs a tokenizer.json or a tokenizer.model (give one with --tokenizer)",
        )
    if path.stat().st_size > _MAX_TOKENIZER_BYTES:
        raise ModelFileError(str(path), f"larger than {_MAX_TOKENIZER_BYTES >> 20} MiB")
    try:
        backend = Backend.from_file(str(path))
        backend.encode(_UNSEEN, add_special_tokens=False)  # fails where the token of unknown text is not there
    except Exception as error:  # the library raises plain Exception
        raise ModelFileError(str(path), f"not a tokenizer: {str(error)[:200]}") from error
    backend.no_truncation()
    backend.no_padding()
    return backend


def _from_pieces(folder: HfFolder) -> Backend:
    """From tokenizer.model, and the tokens that the files beside it add."""
    assert folder.pieces is not None
    backend = build_backend(folder.pieces)
    for token, (text, special) in sorted(folder.added().items()):
        known = backend.token_to_id(text)
        entry = AddedToken(text, normalized=False, special=special)
        if known is None:
            (backend.add_special_tokens if special else backend.add_tokens)([entry])
        if backend.token_to_id(text) != token:
            raise ModelFileError(str(folder.folder), f"adds the token {text[:40]!r} as {token}, where it cannot be")
    return backend


def _mark_special(backend: Backend, texts: list[str]) -> None:
    known = {entry.content for entry in backend.get_added_tokens_decoder().values() if entry.special}
    missing = [text for text in dict.fromkeys(texts) if text not in known and backend.token_to_id(text) is not None]
    backend.add_special_tokens([AddedToken(text, normalized=False, special=True) for text in missing])


def eos_of(*configs: Mapping[str, Any]) -> list[int]:
    """``eos_token_id`` of several configs, a number or a list in each, in order."""
    found: list[int] = []
    for config in configs:
        value = config.get("eos_token_id")
        for token in value if isinstance(value, list) else [value]:
            if isinstance(token, int) and not isinstance(token, bool) and token >= 0:
                found.append(token)
    return list(dict.fromkeys(found))


def _json(path: Path) -> dict[str, Any]:
    """A JSON object from a file; empty if there is no file. Raises ModelFileError."""
    return read_json(path, _MAX_JSON_BYTES) if path.is_file() else {}


def _content(value: Any) -> str | None:
    """The text of a special token, given as a string or as an object."""
    if isinstance(value, dict):
        value = value.get("content")
    return value if isinstance(value, str) else None
