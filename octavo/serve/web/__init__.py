"""The chat page: one file without outside resources, so it works on a machine without internet."""

import hashlib
import re
from base64 import b64encode
from functools import cache
from importlib.resources import files


@cache
def page() -> bytes:
    """The page's HTML."""
    return files(__package__).joinpath("index.html").read_bytes()


@cache
def security_policy() -> bytes:
    """A policy under which only the page's own script and style run, and only this server is called."""
    source = page().decode()
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
