"""Fixtures of the text tests."""

from pathlib import Path

import pytest
from text_kit import train_backend, write_folder
from tokenizers import Tokenizer as Backend

from octavo.text.tokenizer import Tokenizer, from_folder


@pytest.fixture(scope="session")
def backend() -> Backend:
    return train_backend()


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory, backend: Backend) -> Path:
    return write_folder(tmp_path_factory.mktemp("hf"), backend, tokenizer_class="PreTrainedTokenizerFast")


@pytest.fixture(scope="session")
def tokenizer(folder: Path) -> Tokenizer:
    return from_folder(folder, {"eos_token_id": None})
