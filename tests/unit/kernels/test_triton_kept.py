"""Where compiled kernels are kept."""

import logging
import os
from pathlib import Path

import pytest

from octavo.kernels.triton.kept import TOLD, keep


@pytest.fixture(autouse=True)
def untold(monkeypatch):
    for name in TOLD:
        monkeypatch.setenv(name, "")  # so that what a test sets is undone
        monkeypatch.delenv(name)


def test_in_our_own_cache_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    keep()
    assert os.environ["TRITON_CACHE_DIR"] == str(tmp_path / "octavo" / "triton")
    assert not list((tmp_path / "octavo" / "triton").iterdir())


@pytest.mark.parametrize("name", TOLD)
def test_where_triton_was_told(name, tmp_path, monkeypatch):
    monkeypatch.setenv(name, "/elsewhere")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    keep()
    assert {each: os.environ.get(each) for each in TOLD} == {**dict.fromkeys(TOLD), name: "/elsewhere"}
    assert not list(tmp_path.iterdir())


def test_a_folder_that_cannot_be_written_is_said(monkeypatch, caplog):
    monkeypatch.setenv("XDG_CACHE_HOME", "/proc/nowhere")
    with caplog.at_level(logging.WARNING):
        keep()
    found = Path(os.environ["TRITON_CACHE_DIR"])
    assert found.is_dir()
    assert "compiled anew at each start" in caplog.text
    found.rmdir()
