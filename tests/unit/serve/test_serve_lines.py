"""Lines of a batch's file, whatever it is cut into, and the journal that remembers them."""

import io
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from octavo.serve.batches import lines
from octavo.serve.batches.journal import Journal
from octavo.serve.batches.lines import read_lines


class Trickle(io.RawIOBase):
    """A file that gives a few bytes at a time."""

    def __init__(self, data: bytes, step: int) -> None:
        self._data = data
        self._step = step

    def read(self, _: int = -1) -> bytes:
        part, self._data = self._data[: self._step], self._data[self._step :]
        return part


@given(st.lists(st.text(alphabet="ab \r", max_size=8)), st.integers(3, 9))
def test_any_cut_gives_the_same_lines(texts: list[str], step: int) -> None:
    data = lines.BOM + "\n".join(texts).encode()
    want = [(n, t.strip().encode()) for n, t in enumerate(texts, 1) if t.strip()]
    assert list(read_lines(Trickle(data, step), 100)) == want  # type: ignore[arg-type]


def test_long_lines_are_passed_over(monkeypatch) -> None:
    monkeypatch.setattr(lines, "READ_BYTES", 4)
    data = b"ok\n" + b"x" * 100 + b"\nok\n" + b"y" * 100
    assert list(read_lines(io.BytesIO(data), 10)) == [(1, b"ok"), (2, None), (3, b"ok"), (4, None)]


def test_a_journal_is_read_back(tmp_path: Path) -> None:
    path = tmp_path / "j"
    journal = Journal(path)
    journal.add(3, b'{"c":1}', ok=True)
    journal.add(1, b'{"a":1}', ok=False)
    journal.close()
    with path.open("ab") as file:
        file.write(b'{"line":2,"ok":true,"ro')  # cut by a crash
    journal = Journal(path)
    assert (3 in journal, 2 in journal, len(journal), journal.ok) == (True, False, 2, 1)
    journal.add(2, b'{"b":1}', ok=True)
    assert b"".join(journal.rows()) == b'{"a":1}\n{"b":1}\n{"c":1}\n'
    assert b"".join(journal.rows(True)) == b'{"b":1}\n{"c":1}\n'
    journal.close(remove=True)
    assert not path.exists()
