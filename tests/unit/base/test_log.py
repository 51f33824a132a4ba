import io
import json
import logging

import pytest

from octavo.base import log


@pytest.fixture(autouse=True)
def restore():
    logger = logging.getLogger("octavo")
    before = logger.handlers[:], logger.level, logger.propagate
    yield
    logger.handlers[:], logger.propagate = before[0], before[2]
    logger.setLevel(before[1])


def test_text_lines_are_single_and_clean():
    out = io.StringIO()
    log.set_up("info", "text", out)
    logging.getLogger("octavo.engine.core").info("step\n%s\x1b[2J\u2028", "x")
    logging.getLogger("octavo.engine.core").debug("not shown")
    lines = out.getvalue().splitlines()
    assert len(lines) == 1
    assert "engine.core: step\\x0ax\\x1b[2J\\u2028" in lines[0]


def test_json_lines_parse_and_carry_the_trace():
    out = io.StringIO()
    log.set_up("warning", "json", out)
    try:
        raise ValueError("broken")
    except ValueError:
        logging.getLogger("octavo.x").exception("a\nb")
    entry = json.loads(out.getvalue())
    assert entry["level"] == "error"
    assert entry["message"] == "a\\x0ab"
    assert "ValueError: broken" in entry["trace"]


def test_long_messages_are_cut():
    assert len(log.one_line("x" * 100_000)) < log.MAX_LINE_CHARS + 10


def test_set_up_twice_gives_one_line_each():
    out = io.StringIO()
    log.set_up(stream=out)
    log.set_up(stream=out)
    logging.getLogger("octavo").warning("once")
    assert out.getvalue().count("once") == 1


def test_what_is_told_is_an_object_among_objects(capsys):
    log.set_up("error", "json", io.StringIO())
    log.tell("serving 100% of it")
    log.tell("over", failed=True)
    log.set_up("error", "text", io.StringIO())
    log.tell("serving 100% \x1b[2Jof it")
    first, last, second = capsys.readouterr().err.splitlines()
    told = json.loads(first)
    assert (told["level"], told["logger"], told["message"]) == ("info", "octavo", "serving 100% of it")
    assert json.loads(last)["level"] == "error"
    assert second == "octavo: serving 100% \\x1b[2Jof it"
