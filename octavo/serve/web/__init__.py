"""The server's pages: one file each as sent, without outside resources, so they work on a machine without internet.

A page is written in parts, style and scripts in files of their own; they are set into it when it is first asked for.
"""

import hashlib
import re
from base64 import b64encode
from functools import cache
from importlib.resources import files

from octavo.serve.calls import Reply

_STYLE = re.compile(r'<link rel="stylesheet" href="([\w.]+)">')
_SCRIPT = re.compile(r'<script src="([\w.]+)"></script>')


def reply(name: str = "index.html") -> Reply:
    """A page as an answer."""
    headers = ((b"content-security-policy", security_policy(name)), (b"referrer-policy", b"no-referrer"))
    return Reply(page(name), kind=b"text/html; charset=utf-8", headers=headers)


@cache
def page(name: str = "index.html") -> bytes:
    """The page's HTML, whole."""
    text = _STYLE.sub(lambda found: f"<style>\n{_part(found[1])}</style>", _part(name))
    return _SCRIPT.sub(lambda found: f"<script>\n{_part(found[1])}</script>", text).encode()


@cache
def security_policy(name: str = "index.html") -> bytes:
    """A policy under which only the page's own scripts and style run, and only this server is called."""
    source = page(name).decode()
    hashes = {
        kind: " ".join(_digest(block) for block in re.findall(rf"<{kind}>(.*?)</{kind}>", source, re.DOTALL))
        for kind in ("script", "style")
    }
    return (
        f"default-src 'none'; script-src {hashes['script']}; style-src {hashes['style']}; img-src data:; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ).encode()


def _part(name: str) -> str:
    return files(__package__).joinpath(name).read_text("utf-8")


def _digest(text: str) -> str:
    return f"'sha256-{b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
