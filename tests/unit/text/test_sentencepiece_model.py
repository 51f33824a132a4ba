"""A folder whose tokenizer is only a tokenizer.model, beside the sentencepiece library itself."""

import contextlib
import io
import json

import pytest
import sentencepiece
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.base.errors import ModelFileError
from octavo.text.sentencepiece_model import read_keys
from octavo.text.tokenizer import from_folder

WORDS = "the sheet is folded into sixteen pages and every page holds lines of text that someone reads aloud at night"
LINES = [" ".join(WORDS.split()[at % 20 :] + WORDS.split()[: at % 7]) + f" {at}, {at * 37 % 101}!" for at in range(200)]
TEXTS = ["the folded pages", " two  spaces and\na line", "naïve 12é 漢字 🙂", "", "x" * 50, "</s> of <s>"]


def trained(**options) -> bytes:
    out = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(LINES),
        model_writer=out,
        **{
            "model_type": "bpe",
            "vocab_size": 400,
            "byte_fallback": True,
            "normalization_rule_name": "identity",
            "remove_extra_whitespaces": False,
            "minloglevel": 2,
            **options,
        },
    )
    return out.getvalue()


MODEL = trained()


def folder_of(tmp_path, model=MODEL, **files):
    (tmp_path / "tokenizer.model").write_bytes(model)
    for name, content in files.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(content))
    return tmp_path


@pytest.mark.parametrize("prefix", [True, False])
@pytest.mark.parametrize("fallback", [True, False])
def test_ids_and_text_are_the_librarys(tmp_path, prefix, fallback):
    model = trained(add_dummy_prefix=prefix, byte_fallback=fallback, vocab_size=400 if fallback else 150)
    mine, theirs = from_folder(folder_of(tmp_path, model)), sentencepiece.SentencePieceProcessor(model_proto=model)
    for text in [*TEXTS[:-1], *LINES[:40]]:
        ids = theirs.encode(text)
        assert mine.encode(text, add_special=False) == ids, text
        if fallback:
            assert mine.decode(ids) == theirs.decode(ids) == text
    assert (mine.bos_id, mine.eos_ids, mine.vocab_size) == (theirs.bos_id(), (theirs.eos_id(),), theirs.vocab_size())


def test_what_lies_beside_it_counts(tmp_path):
    mine = from_folder(folder_of(tmp_path))
    assert mine.encode("the page")[0] == mine.bos_id == 1
    assert mine.special_texts["eos_token"] == "</s>"
    assert mine.encode("a</s>")[-1] == 2  # control tokens are known by their text, as from a tokenizer.json
    config = {
        "add_bos_token": False,
        "add_eos_token": True,
        "chat_template": "{{ messages }}",
        "added_tokens_decoder": {"400": {"content": "<|turn|>", "special": True}, "401": {"content": "<plain>"}},
    }
    mine = from_folder(folder_of(tmp_path, tokenizer_config=config))
    assert mine.encode("<|turn|>the page")[0] == 400
    assert mine.encode("the page")[-1] == 2
    assert (400 in mine.special_ids, 401 in mine.special_ids, mine.vocab_size) == (True, False, 402)
    assert mine.templates


def test_a_tokenizer_json_comes_first(tmp_path):
    from_folder(folder_of(tmp_path)).backend.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer.model").write_bytes(b"nonsense")
    assert from_folder(tmp_path).encode("the page")


@pytest.mark.parametrize(
    ("model", "word"),
    [
        (b"", "no BPE model"),
        (b"\x0a\xff\xff\xff\xff\x0f", "ends early"),
        (b"\x0f" * 50, "no protobuf"),
        (trained(model_type="unigram", vocab_size=300), "no BPE model"),
        (trained(normalization_rule_name="nmt_nfkc"), "normalizes"),
        (trained(remove_extra_whitespaces=True), "normalizes"),
    ],
    ids=["empty", "short", "foreign", "unigram", "nfkc", "squeezed"],
)
def test_what_cannot_be_read_is_one_line(tmp_path, model, word):
    with pytest.raises(ModelFileError, match=word) as caught:
        from_folder(folder_of(tmp_path, model))
    assert "\n" not in str(caught.value)


def test_added_tokens_must_follow(tmp_path):
    with pytest.raises(ModelFileError, match="where it cannot be"):
        from_folder(folder_of(tmp_path, added_tokens={"<far>": 900}))


@given(at=st.integers(0, len(MODEL) - 1), value=st.binary(min_size=1, max_size=6))
@settings(max_examples=150, deadline=None)
def test_a_damaged_file_is_read_or_refused(tmp_path_factory, at, value):
    path = tmp_path_factory.getbasetemp() / "damaged.model"
    path.write_bytes(MODEL[:at] + value + MODEL[at + len(value) :])
    with contextlib.suppress(ModelFileError):
        read_keys(path, {})
