"""The tokenizer: text to token ids and back, special tokens known by id. Thread safe once built."""

from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

from tokenizers import Tokenizer as Backend

from octavo.base.errors import ModelFileError
from octavo.text.gguf_tokenizer import GgufVocabulary, build_backend
from octavo.text.hf_tokenizer import HfFolder, eos_of, load_backend
from octavo.text.pieces import Pieces, bytes_table
from octavo.text.special import Rendered, SpecialText, clean

MAX_CONTROL_CHARS = 512  # what looks for them in a text keeps all their beginnings


class HasMetadata(Protocol):
    """A parsed GGUF header."""

    @property
    def metadata(self) -> Mapping[str, Any]: ...


class TokenizerSource(Protocol):
    """What `load_tokenizer` needs of a model's files."""

    @property
    def path(self) -> Path: ...
    @property
    def config(self) -> Mapping[str, Any]: ...
    @property
    def generation_config(self) -> Mapping[str, Any]: ...
    @property
    def tokenizer_dir(self) -> Path | None: ...
    @property
    def gguf(self) -> HasMetadata | None: ...
    @property
    def chat_template(self) -> str | None: ...


class Tokenizer:
    """Wraps a `tokenizers.Tokenizer`.

    `vocab_size` is one above the highest id in use, added tokens included; a model's embedding is often wider.
    `special_ids` are the tokens that carry structure and no text of their own.
    """

    def __init__(
        self,
        backend: Backend,
        *,
        bos_id: int | None = None,
        eos_ids: Sequence[int] = (),
        vocab_size: int | None = None,
        templates: Mapping[str, str] | None = None,
        special_texts: Mapping[str, str] | None = None,
        longest: int | None = None,
    ) -> None:
        added = backend.get_added_tokens_decoder()
        self.backend = backend
        self.vocab_size = vocab_size or max(backend.get_vocab_size(True), max(added, default=-1) + 1)
        self.bos_id = bos_id
        self.eos_ids = tuple(dict.fromkeys(eos_ids))
        special = {token for token, entry in added.items() if entry.special}
        self.special_ids = frozenset(special | set(self.eos_ids) | ({bos_id} if bos_id is not None else set()))
        self.templates = dict(templates or {})
        self.special_texts = dict(special_texts or {})
        self.pieces: Pieces | None = bytes_table(backend)
        self.special = SpecialText(backend, self.special_ids)
        self._longest = longest  # of the tokens as written, where it is known; asking the library takes a while

    @property
    def chat_template(self) -> str | None:
        return self.templates.get("default")

    @cached_property
    def longest_token(self) -> int:
        """Most characters of text that one token can stand for, whitespace that a special token swallows aside."""
        longest = self._longest or max(map(len, self.backend.get_vocab(True)), default=1)
        # Normal forms can fold several characters into one.
        return longest * (4 if "NF" in str(self.backend.normalizer) else 1)

    def encode(self, text: str, *, add_special: bool = True) -> list[int]:
        """Token ids. Special tokens written out in `text` become their ids; `add_special` adds bos and the like."""
        # The batch call alone lets other threads run, and computes no offsets.
        ids: list[int] = self.backend.encode_batch_fast([clean(text)], add_special_tokens=add_special)[0].ids
        return ids

    def encode_chat(self, rendered: Rendered | str) -> list[int]:
        """Token ids of a rendered chat; control strings that came from the messages stay plain text."""
        if isinstance(rendered, str) or not rendered.shielded:
            return self.encode(str(rendered), add_special=False)
        return self.special.encode(rendered)

    def decode(self, ids: Sequence[int], *, skip_special: bool = True) -> str:
        """The text of `ids`; unknown ids are nothing.

        Bytes that are not UTF-8 become U+FFFD, one for each broken character and not, as in transformers with byte
        fallback, one for each byte of the run: a stream could not know.
        """
        if skip_special:
            special = self.special_ids
            ids = [token for token in ids if token not in special]
        if self.pieces is None:
            text: str = self.backend.decode(list(ids), skip_special_tokens=False)
            return text
        data = b"".join(map(self.pieces.__getitem__, ids))
        if self.pieces.strip_first and data[:1] == b" ":
            data = data[1:]
        return data.decode("utf-8", "replace")

    def token_text(self, token: int) -> str:
        """One token's text, special tokens written out; part of a character shows as U+FFFD."""
        if self.pieces is None:
            text: str = self.backend.decode([token], skip_special_tokens=False)
            return text
        return self.pieces[token].decode("utf-8", "replace")

    def token_bytes(self, token: int) -> bytes:
        """The bytes of one token."""
        return self.token_text(token).encode() if self.pieces is None else self.pieces[token]


def load_tokenizer(files: TokenizerSource) -> Tokenizer:
    """The model's tokenizer, from its folder or, failing that, its GGUF header. Raises ModelFileError."""
    if files.tokenizer_dir is not None:
        tokenizer = from_folder(files.tokenizer_dir, files.generation_config, files.config)
    elif files.gguf is not None:
        tokenizer = from_gguf(files.gguf.metadata, str(files.path))
    else:
        raise ModelFileError(str(files.path), "has no tokenizer; give one with --tokenizer")
    longest = tokenizer.special.longest
    if longest > MAX_CONTROL_CHARS:
        raise ModelFileError(
            str(files.path), f"has a control token of {longest} characters, allowed are {MAX_CONTROL_CHARS}"
        )
    if files.chat_template and files.chat_template != tokenizer.chat_template:
        tokenizer.templates = {"default": files.chat_template}
    return tokenizer


def from_folder(
    folder: Path, generation_config: Mapping[str, Any] | None = None, config: Mapping[str, Any] | None = None
) -> Tokenizer:
    """A tokenizer from a Hugging Face folder."""
    source = HfFolder(folder)
    backend = load_backend(source)
    texts = source.special_texts()
    bos = backend.token_to_id(texts["bos_token"]) if "bos_token" in texts else None
    eos = backend.token_to_id(texts["eos_token"]) if "eos_token" in texts else None
    eos_ids = eos_of(generation_config or {}, config or {}, {"eos_token_id": eos})
    return Tokenizer(backend, bos_id=bos, eos_ids=eos_ids, templates=source.templates(), special_texts=texts)


def from_gguf(metadata: Mapping[str, Any], path: str = "model.gguf") -> Tokenizer:
    """A tokenizer from the ``tokenizer.*`` keys of a GGUF file."""
    vocabulary = GgufVocabulary(metadata, path)
    names = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}
    ids = {name: vocabulary.token_id(key) for name, key in names.items()}
    return Tokenizer(
        build_backend(vocabulary),
        bos_id=ids["bos_token"],
        eos_ids=vocabulary.eos_ids,
        vocab_size=vocabulary.size,
        templates=vocabulary.templates(),
        special_texts={name: vocabulary.tokens[token] for name, token in ids.items() if token is not None},
        longest=max(map(len, vocabulary.tokens)),
    )
