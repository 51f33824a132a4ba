"""The server's pages: one file each without outside resources, so they work on a machine without internet."""

import hashlib
import re
from base64 import b64encode
from functools import cache
from importlib.resources import files

from octavo.serve.calls import Reply


def reply(name: str = "index.html") -> Reply:
    """A page as an answer."""
    headers = ((b"content-security-policy", security_policy(name)), (b"referrer-policy", b"no-referrer"))
    return Reply(page(name), kind=b"text/html; charset=utf-8", headers=headers)


@cache
def page(name: str = "index.html") -> bytes:
    """The page's HTML."""
    return files(__package__).joinpath(name).read_bytes()


@cache
def security_policy(name: str = "index.html") -> bytes:
    """A policy under which only the page's own script and style run, and only this server is called."""
    source = page(name).decode()
    hashes = {
        kind: " ".join(_digest(block) for block in re.findall(rf"<{kind}>(.*?)</{kind}>", source, re.DOTALL))
        for kind in ("script", "style")
    }
    return (
        f"default-src 'none'; script-src {hashes['script']}; style-src {hashes['style']}; img-src data:; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ).encode()


def _digest(text: str) -> str:
    return f"'sha256-{b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
