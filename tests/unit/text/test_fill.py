"""Fill in the middle: the marks are found in the vocabulary and stand where each family wants them."""

import pytest
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, pre_tokenizers, trainers

from octavo.text.fill import find_fill
from octavo.text.tokenizer import Tokenizer


def tokenizer(*special: str) -> Tokenizer:
    backend = Backend(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    backend.train_from_iterator(
        ["def f"], trainers.BpeTrainer(special_tokens=list(special), initial_alphabet=alphabet, show_progress=False)
    )
    return Tokenizer(backend)


@pytest.mark.parametrize(
    ("special", "want"),
    [
        (
            ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>", "<|endoftext|>"),
            "<|fim_prefix|>ab<|fim_suffix|>yz<|fim_middle|>",
        ),
        (("<fim_prefix>", "<fim_suffix>", "<fim_middle>"), "<fim_prefix>ab<fim_suffix>yz<fim_middle>"),
        (("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"), "<｜fim▁begin｜>ab<｜fim▁hole｜>yz<｜fim▁end｜>"),
        (("[PREFIX]", "[SUFFIX]"), "[SUFFIX]yz[PREFIX]ab"),
    ],
)
def test_forms(special: tuple[str, ...], want: str) -> None:
    own = tokenizer(*special)
    form = find_fill(own)
    assert form is not None
    tokens = form.tokens(own, own.encode("ab"), own.encode("yz"))
    assert own.decode(tokens, skip_special=False) == want
    assert set(form.ends) == {own.backend.token_to_id(text) for text in special}


def test_none() -> None:
    assert find_fill(tokenizer("<|fim_prefix|>", "<|fim_suffix|>")) is None
