"""A `tokenizers` back end from the ``tokenizer.ggml.*`` keys of a GGUF file.

Two kinds: ``gpt2``, byte-level BPE with merges in the file, and ``llama``, SentencePiece BPE, whose merges are
rebuilt from the scores. The spec is the GGUF page of ggml, the truth each model's own tokenizer.json.
"""

from collections.abc import Mapping, Sequence
from numbers import Integral
from typing import Any

from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, processors
from tokenizers import Tokenizer as Backend

from octavo.base.errors import ModelFileError, UnknownName
from octavo.text.pretokenizers import PRE_TOKENIZERS

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)

# Ends of a turn that chat models write, whatever the file names as its end token.
CHAT_ENDS = (
    "<|im_end|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<end_of_turn>",
    "<|end|>",
    "<|endoftext|>",
    "<|end_of_text|>",
    "<｜end▁of▁sentence｜>",
)
_TURN_MARKS = (
    *CHAT_ENDS,
    "<|im_start|>",
    "<start_of_turn>",
    "<|start_header_id|>",
    "<|end_header_id|>",
    "<|start_of_role|>",
    "<|end_of_role|>",
)
_MAX_PIECE = 512  # characters of a SentencePiece piece that are searched for splits


class GgufVocabulary:
    """The tokenizer keys of one file, checked: lists of one length, ids in range."""

    def __init__(self, metadata: Mapping[str, Any], path: str) -> None:
        self.path = path
        self._metadata = metadata
        self.model = self._get("model", str, "")
        self.tokens: list[str] = self._list("tokens", str)
        if not self.tokens:
            raise self.error("it has no tokenizer.ggml.tokens")
        self.types: list[int] = self._list("token_type", int) or [NORMAL] * len(self.tokens)
        self.scores: list[float] = self._list("scores", float)
        self.merges: list[str] = self._list("merges", str)
        if len(self.types) != len(self.tokens):
            raise self.error(f"token_type has {len(self.types)} entries for {len(self.tokens)} tokens")
        self.ids = {token: index for index, token in enumerate(self.tokens)}
        if len(self.ids) != len(self.tokens):
            raise self.error("its vocabulary holds one token twice")
        self.pre = self._get("pre", str, "default")
        self._marked = [place for place, kind in enumerate(self.types) if kind != NORMAL]  # few of very many

    def error(self, reason: str) -> ModelFileError:
        return ModelFileError(self.path, f"tokenizer: {reason}")

    def token_id(self, name: str) -> int | None:
        """The id under ``tokenizer.ggml.<name>_token_id``, or None if absent or not in the vocabulary."""
        value = self._get(f"{name}_token_id", int, None)
        return value if value is not None and 0 <= value < len(self.tokens) else None

    def flag(self, name: str, default: bool) -> bool:
        return bool(self._get(name, bool, default))

    @property
    def size(self) -> int:
        """Tokens up to the last that is in use: files pad their lists to the width of the embedding."""
        size = len(self.types)
        while size > 1 and self.types[size - 1] == UNUSED:
            size -= 1
        return size

    @property
    def eos_ids(self) -> tuple[int, ...]:
        """The file's end tokens, then well-known ends of a chat turn that its vocabulary has."""
        named = [self.token_id(name) for name in ("eos", "eot", "eom")]
        known = [self.ids.get(text) for text in CHAT_ENDS]
        return tuple(dict.fromkeys(token for token in (*named, *known) if token is not None))

    def special_tokens(self) -> list[str]:
        """Control tokens and the marks of chat turns, in order of id."""
        named = {self.token_id(name) for name in ("bos", "eos", "eot", "eom", "unknown", "padding")}
        named |= {self.ids.get(text) for text in _TURN_MARKS}
        control = {place for place in self._marked if self.types[place] in (CONTROL, UNKNOWN)}
        return [self.tokens[place] for place in sorted(control | {place for place in named if place is not None})]

    def user_defined(self) -> list[str]:
        """Tokens that are cut out of a text before all others, in order of id."""
        return [self.tokens[place] for place in self._marked if self.types[place] == USER_DEFINED]

    @property
    def swallows_space(self) -> frozenset[str]:
        """Control tokens that take in the white space after them: Phi-3's, of which a GGUF file says nothing."""
        if self.model != "llama" or self._metadata.get("general.architecture") != "phi3":
            return frozenset()
        return frozenset(self.special_tokens()) - {"<s>", "<unk>", "<|endoftext|>"}

    def templates(self) -> dict[str, str]:
        """Chat templates by name: ``tokenizer.chat_template`` is ``default``, ``tokenizer.chat_template.X`` is X."""
        prefix = "tokenizer.chat_template"
        found = {}
        for key, value in self._metadata.items():
            if key.startswith(prefix) and isinstance(value, str):
                found[key[len(prefix) + 1 :] or "default"] = value
        return found

    def _get(self, name: str, kind: type, default: Any) -> Any:
        value = self._metadata.get(f"tokenizer.ggml.{name}")
        if value is None:
            return default
        accepted: Any = Integral if kind is int else kind  # numpy's whole numbers too, and none of its arrays
        if not isinstance(value, accepted):
            raise self.error(f"{name} should be of type {kind.__name__}")
        return int(value) if kind is int else value

    def _list(self, name: str, kind: type) -> list[Any]:
        value = self._metadata.get(f"tokenizer.ggml.{name}")
        if value is None:
            return []
        values = value.tolist() if hasattr(value, "tolist") else value
        if not isinstance(values, Sequence) or isinstance(values, str):
            raise self.error(f"{name} should be a list")
        accepted = {int, float} if kind is float else {kind}
        if not accepted.issuperset(map(type, values)):
            raise self.error(f"{name} should hold entries of type {kind.__name__}")
        return list(values)


def build_backend(vocabulary: GgufVocabulary) -> Backend:
    """The back end, special tokens and post-processor included. Raises ModelFileError."""
    builders = {"gpt2": _byte_level, "llama": _sentencepiece}
    if vocabulary.model not in builders:
        raise UnknownName("tokenizer.ggml.model", vocabulary.model, builders)
    try:
        backend = builders[vocabulary.model](vocabulary)
        _add_tokens(backend, vocabulary)
        _add_post_processor(backend, vocabulary)
    except (ModelFileError, UnknownName):
        raise
    except Exception as error:  # the library raises plain Exception for merges out of vocabulary and the like
        raise vocabulary.error(str(error)[:200]) from error
    return backend


def _byte_level(vocabulary: GgufVocabulary) -> Backend:
    if vocabulary.pre not in PRE_TOKENIZERS:
        raise UnknownName("tokenizer.ggml.pre", vocabulary.pre, PRE_TOKENIZERS)
    scheme = PRE_TOKENIZERS[vocabulary.pre]
    merges = []
    for line in vocabulary.merges:
        left, space, right = line.partition(" ") if line[:1] != " " else (line, "", "")
        if not space or not right:
            raise vocabulary.error(f"merge {line[:40]!r} is not two parts with a space between")
        merges.append((left, right))
    backend = Backend(models.BPE(vocabulary.ids, merges, ignore_merges=scheme.ignore_merges))
    if scheme.nfc:
        backend.normalizer = normalizers.NFC()
    splits = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in scheme.patterns]
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [*splits, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    backend.decoder = decoders.ByteLevel()
    return backend


def _sentencepiece(vocabulary: GgufVocabulary) -> Backend:
    if len(vocabulary.scores) < len(vocabulary.tokens):
        raise vocabulary.error(f"scores has {len(vocabulary.scores)} entries for {len(vocabulary.tokens)} tokens")
    unknown = vocabulary.token_id("unknown")
    unknown_token = None if unknown is None else vocabulary.tokens[unknown]
    byte_fallback = BYTE in vocabulary.types or "<0x00>" in vocabulary.ids
    backend = Backend(
        models.BPE(
            vocabulary.ids,
            merges_from_scores(vocabulary),
            unk_token=unknown_token,
            fuse_unk=True,
            byte_fallback=byte_fallback,
        )
    )
    prefix = vocabulary.flag("add_space_prefix", True)
    steps = [normalizers.Prepend("▁")] if prefix else []
    backend.normalizer = normalizers.Sequence([*steps, normalizers.Replace(" ", "▁")])
    strip = [decoders.Strip(" ", 1, 0)] if prefix else []
    backend.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), *strip])
    return backend


def merges_from_scores(vocabulary: GgufVocabulary) -> list[tuple[str, str]]:
    """Merges that a SentencePiece BPE vocabulary implies, best first.

    SentencePiece joins the neighbours whose union has the highest score (Kudo and Richardson 2018). So every way
    to cut a piece into two pieces is a merge, ranked by the score of the whole; between cuts of one piece the
    longer left part goes first, as in transformers' converters.
    """
    scores = vocabulary.scores
    kinds = vocabulary.types
    usable = {token: scores[index] for index, token in enumerate(vocabulary.tokens) if kinds[index] == NORMAL}
    merges: list[tuple[str, str]] = []
    for piece in sorted(usable, key=usable.__getitem__, reverse=True):
        if len(piece) > _MAX_PIECE:
            continue
        cuts = range(len(piece) - 1, 0, -1)
        merges += [
            (left, right) for cut in cuts if (left := piece[:cut]) in usable and (right := piece[cut:]) in usable
        ]
    return merges


def _add_tokens(backend: Backend, vocabulary: GgufVocabulary) -> None:
    special = vocabulary.special_tokens()
    chosen = set(special)
    user_defined = [token for token in vocabulary.user_defined() if token and token not in chosen]
    swallow = vocabulary.swallows_space
    backend.add_special_tokens(
        [AddedToken(token, normalized=False, special=True, rstrip=token in swallow) for token in special if token]
    )
    backend.add_tokens([AddedToken(token, normalized=False, special=False) for token in user_defined])


def _add_post_processor(backend: Backend, vocabulary: GgufVocabulary) -> None:
    default = PRE_TOKENIZERS[vocabulary.pre].add_bos if vocabulary.model == "gpt2" else True
    bos = vocabulary.token_id("bos") if vocabulary.flag("add_bos_token", default) else None
    eos = vocabulary.token_id("eos") if vocabulary.flag("add_eos_token", False) else None
    backend.post_processor = processors.TemplateProcessing(
        single=f"{'bos ' if bos is not None else ''}$A{' eos' if eos is not None else ''}",
        special_tokens=[(name, token) for name, token in (("bos", bos), ("eos", eos)) if token is not None],
    )
