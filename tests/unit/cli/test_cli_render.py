import pytest

from octavo.cli.render import PlainView, RichView, split_blocks


@pytest.mark.parametrize(
    ("text", "done", "tail"),
    [
        ("", "", ""),
        ("a", "", "a"),
        ("a\n\nb", "a\n\n", "b"),
        ("a\n\n```\nx\n\ny", "a\n\n", "```\nx\n\ny"),
        ("```\nx\n\ny\n```\n\nz", "```\nx\n\ny\n```\n\n", "z"),
        ("a\n", "", "a\n"),
    ],
)
def test_blocks_end_at_blank_lines_outside_fences(text, done, tail):
    assert split_blocks(text) == (done, tail)


def test_blocks_do_not_depend_on_how_text_is_cut():
    text = "# A\n\nword *b*\n\n```py\nx = 1\n\ny = 2\n```\n\nend"
    for size in range(1, len(text)):
        shown, tail = "", ""
        for start in range(0, len(text), size):
            done, tail = split_blocks(tail + text[start : start + size])
            shown += done
        assert shown + tail == text


def test_plain_view_is_bare(capsys):
    view = PlainView()
    view.answer(iter(["**a**", "b"]))
    view.note("fast")
    assert capsys.readouterr() == ("**a**b\n", "fast\n")


def test_rich_view_sets_markdown(capsys):
    RichView().answer(iter(["**bold** wo", "rd\n\n", "next"]))
    out = capsys.readouterr().out
    assert "bold word" in out
    assert "**" not in out
    assert "next" in out
