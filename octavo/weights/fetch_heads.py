"""Only the beginning of GGUF files on the hub, by HTTP ranges: all that is to know of a model before a weight is read.

What comes lies in a file as long as the real one, a hole where the weights would be, so that the ordinary reader reads
it, with all its checks.
"""

from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, BinaryIO

from octavo.base.errors import ConfigError, ModelFileError
from octavo.weights.fetch_hub import CONNECT_SECONDS, READ_SECONDS, hub_endpoint
from octavo.weights.gguf import MAGIC, read_gguf

if TYPE_CHECKING:
    import httpx

FIRST_BYTES = 1 << 20  # enough without a vocabulary; doubled until the header is whole
MAX_BYTES = 128 << 20  # of one header


class NoRanges(Exception):
    """The hub sends files whole or not at all."""


def fetch_heads(repo: str, commit: str, names: Sequence[str], folder: Path) -> Path:
    """The headers of some .gguf files of a repository, in `folder`; the path of the first.

    Raises NoRanges, ConfigError when the hub does not give them, and ModelFileError for what is no GGUF header.
    """
    import httpx
    from huggingface_hub import get_token

    timeout = httpx.Timeout(READ_SECONDS, connect=CONNECT_SECONDS)
    token = get_token()
    headers = {"Accept-Encoding": "identity"} | ({"Authorization": f"Bearer {token}"} if token else {})
    paths = [folder / PurePosixPath(name).name for name in names]
    try:
        # The client sends the token to no other host than the first.
        with httpx.Client(timeout=timeout, follow_redirects=True, headers=headers) as client:
            for name, path in zip(names, paths):
                with open(path, "wb") as file:
                    _fetch(client, f"{hub_endpoint()}/{repo}/resolve/{commit}/{name}", file, path)
    except httpx.HTTPError as error:
        raise ConfigError(f"fetching {repo} broke off; run again ({type(error).__name__})") from None
    return paths[0]


def _fetch(client: "httpx.Client", url: str, file: BinaryIO, path: Path) -> None:
    have, want = 0, FIRST_BYTES
    while True:
        total = _append(client, url, file, have, want)
        have = min(want, total)
        file.truncate(total)
        file.flush()
        enough = have >= min(total, MAX_BYTES)
        try:
            tensors = read_gguf(path).tensors.values()
        except ModelFileError:
            with open(path, "rb") as again:
                if enough or again.read(len(MAGIC)) != MAGIC:
                    raise
        else:
            # What was read of the hole, if anything was, ends behind what came.
            if enough or min((tensor.offset for tensor in tensors), default=total) <= have:
                return
        want *= 2


def _append(client: "httpx.Client", url: str, file: BinaryIO, start: int, end: int) -> int:
    """Bytes `start` to `end` of the file at `url`, written at their place; how many it has in all."""
    with client.stream("GET", url, headers={"Range": f"bytes={start}-{end - 1}"}) as response:
        if response.status_code == 200:
            raise NoRanges
        total = response.headers.get("Content-Range", "").rpartition("/")[2]
        if response.status_code != 206 or not total.isdigit():
            raise ConfigError(f"the hub answered {response.status_code} for {url}")
        file.seek(start)
        left = min(end, int(total)) - start
        for chunk in response.iter_raw():
            file.write(chunk[:left])
            left -= len(chunk)
            if left <= 0:
                return int(total)
    raise ConfigError(f"the hub sent too little of {url}")
