"""Incremental text: equal to the whole, no half characters, no half emoji, nothing of the prompt."""

import re
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from text_kit import CORPUS, sentencepiece_metadata, train_backend
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, pre_tokenizers

from octavo.text.detokenize import TableCharacters, WindowCharacters, characters
from octavo.text.graphemes import MAX_HELD, EmojiGuard
from octavo.text.pieces import bytes_table
from octavo.text.structured import vocabulary_of
from octavo.text.tokenizer import Tokenizer, from_gguf

BYTE_LEVEL = Tokenizer(train_backend(400))
SPACED = from_gguf(sentencepiece_metadata(prefix=True)[1])
EMOJI = ["👩‍👩‍👧‍👦", "👍🏽", "🇫🇷", "🇩🇪", "❤️‍🔥", "🏴󠁧󠁢󠁥󠁮󠁧󠁿", "😀", "❤️", "🏳️‍🌈", "👨🏿‍🚀"]


class Detokenizer:
    """Characters, then the emoji guard, as a Collector joins them."""

    def __init__(self, tokenizer: Tokenizer, prompt: Sequence[int] = (), skip_special: bool = True) -> None:
        self._characters = characters(tokenizer, prompt, skip_special=skip_special)
        self._guard = EmojiGuard()

    def feed(self, tokens: list[int]) -> str:
        return self._guard.feed(self._characters.feed(tokens))

    def flush(self) -> str:
        return self._guard.feed(self._characters.flush()) + self._guard.flush()


def stream(detokenizer: Detokenizer, tokens: list[int], cuts: list[int] | None = None) -> list[str]:
    pieces = []
    if cuts is None:
        pieces = [detokenizer.feed([token]) for token in tokens]
    else:
        rest = list(tokens)
        for cut in cuts:
            pieces.append(detokenizer.feed(rest[:cut]))
            rest = rest[cut:]
        pieces.append(detokenizer.feed(rest))
    return [*pieces, detokenizer.flush()]


@given(st.data(), st.sampled_from([BYTE_LEVEL, SPACED]), st.booleans())
@settings(deadline=None, max_examples=150)
def test_random_tokens_join_to_the_whole(data: st.DataObject, tokenizer: Tokenizer, skip: bool) -> None:
    tokens = data.draw(st.lists(st.integers(0, tokenizer.vocab_size + 5), max_size=60))
    cuts = data.draw(st.none() | st.lists(st.integers(0, 5), max_size=20))
    whole = tokenizer.decode(tokens, skip_special=skip)
    assert "".join(stream(Detokenizer(tokenizer, skip_special=skip), tokens, cuts)) == whole


@given(st.lists(st.sampled_from([*EMOJI, "a", " ", "你", "\n", "é"]), max_size=12).map("".join))
@settings(deadline=None, max_examples=150)
def test_no_piece_ends_inside_an_emoji(text: str) -> None:
    shown = ""
    for piece in stream(Detokenizer(BYTE_LEVEL), BYTE_LEVEL.encode(text)):
        shown += piece
        assert "\ufffd" not in piece
        rest = text[len(shown) :]
        assert text.startswith(shown)
        # What follows must not reach back into what has been shown.
        assert not re.match("[\u200d\ufe0e\ufe0f\U0001f3fb-\U0001f3ff\U000e0020-\U000e007f]", rest)
        assert not shown.endswith("\u200d")
        flags = re.search("[\U0001f1e6-\U0001f1ff]*\\Z", shown)
        assert flags is not None
        assert len(flags[0]) % 2 == 0
    assert shown == text


def test_ordinary_text_is_not_delayed() -> None:
    for text in ("hello world", "你好世界", "naïve é", "1 2 3", "Γειά", "…"):
        for tokens in ([token] for token in BYTE_LEVEL.encode(text)):
            data = BYTE_LEVEL.token_bytes(tokens[0])
            if data.decode("utf-8", "ignore").encode() == data:
                assert Detokenizer(BYTE_LEVEL).feed(tokens) == data.decode()


def test_an_endless_sequence_is_not_held_for_ever() -> None:
    guard = EmojiGuard()
    shown = "".join(guard.feed("👩\u200d") for _ in range(100))
    assert len(shown) >= 200 - MAX_HELD - 2
    assert shown + guard.flush() == "👩\u200d" * 100


@given(st.lists(st.sampled_from([*EMOJI, *"👩🏽🇫\u200d\ufe0fa"]), max_size=40), st.integers(1, 7))
@settings(deadline=None)
def test_guard_loses_nothing(parts: list[str], size: int) -> None:
    text = "".join(parts)
    guard = EmojiGuard()
    pieces = [guard.feed(text[start : start + size]) for start in range(0, len(text), size)]
    assert "".join(pieces) + guard.flush() == text


def test_the_prompt_is_never_shown() -> None:
    ids = BYTE_LEVEL.encode("你好🦑")
    for cut in range(len(ids)):
        pieces = stream(Detokenizer(BYTE_LEVEL, ids[:cut]), ids[cut:])
        assert "".join(pieces) == BYTE_LEVEL.decode(ids[cut:])


def test_a_continuation_keeps_its_first_space() -> None:
    assert SPACED.bos_id is not None
    words = SPACED.encode("the fox", add_special=False)
    assert "".join(stream(Detokenizer(SPACED, [SPACED.bos_id]), words)) == "the fox"
    assert "".join(stream(Detokenizer(SPACED, SPACED.encode("see")), words)) == " the fox"


def test_byte_fallback_waits_for_the_whole_character() -> None:
    ids = SPACED.encode("🦑", add_special=False)
    pieces = stream(Detokenizer(SPACED, SPACED.encode("x")), ids)
    assert [piece for piece in pieces if piece] == [" 🦑"] or "".join(pieces).strip() == "🦑"
    assert all("\ufffd" not in piece for piece in pieces)


@pytest.fixture(scope="module")
def word_pieces() -> Tokenizer:
    words = ["[UNK]", "un", "##break", "##able", "hello", "world"]
    backend = Backend(models.WordPiece({word: index for index, word in enumerate(words)}, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    backend.decoder = decoders.WordPiece()
    return Tokenizer(backend)


def test_other_decoders_go_by_window(word_pieces: Tokenizer) -> None:
    assert word_pieces.pieces is None
    tokens = word_pieces.encode("hello unbreakable world")
    pieces = stream(Detokenizer(word_pieces), tokens)
    assert "".join(pieces) == "hello unbreakable world"
    assert pieces[0] == "hello"
    assert "".join(stream(Detokenizer(word_pieces, tokens[:1]), tokens[1:])) == " unbreakable world"


@given(st.lists(st.sampled_from(CORPUS), max_size=2).map(" ".join))
@settings(deadline=None, max_examples=20)
def test_window_and_table_agree(text: str) -> None:
    tokens = BYTE_LEVEL.encode(text)
    table, window = TableCharacters(BYTE_LEVEL), WindowCharacters(BYTE_LEVEL)
    assert table.feed(tokens) + table.flush() == window.feed(tokens) + window.flush() == BYTE_LEVEL.decode(tokens)


@pytest.mark.parametrize("tokenizer", [BYTE_LEVEL, SPACED])
def test_all_tokens_at_once_are_what_each_is(tokenizer: Tokenizer) -> None:
    assert tokenizer.pieces is not None
    count = tokenizer.vocab_size + 3
    known = dict(tokenizer.pieces)
    listed = tokenizer.pieces.listed(count)
    assert tokenizer.pieces == known
    assert listed == [tokenizer.token_bytes(token) for token in range(count)]


def test_tokens_that_are_not_written_in_stand_ins_are_what_each_is() -> None:
    backend = Backend(models.BPE({"a": 0, "Ġb": 1, "é": 2, "犬": 3, "\x01": 4}, []))
    backend.decoder = decoders.ByteLevel()
    pieces = bytes_table(backend)
    assert pieces is not None
    assert pieces.listed(6) == [b"a", b" b", b"\xe9", "犬".encode(), b"\x01", b""]
    assert pieces.listed(6) == [pieces[token] for token in range(6)]


def test_a_vocabulary_is_worked_out_once(monkeypatch: pytest.MonkeyPatch) -> None:
    tell, calls = vocabulary_of(BYTE_LEVEL), []
    assert tell is not None
    assert BYTE_LEVEL.pieces is not None
    listed = BYTE_LEVEL.pieces.listed

    def slow(count: int) -> list[bytes]:
        calls.append(count)
        time.sleep(0.05)
        return listed(count)

    monkeypatch.setattr(BYTE_LEVEL.pieces, "listed", slow)
    with ThreadPoolExecutor(4) as threads:
        told = list(threads.map(lambda _: tell(), range(4)))
    assert len(calls) == 1
    assert all(each is told[0] for each in told)
