"""One public file from the Hugging Face hub by HTTP ranges, so that a broken download goes on where it stopped."""

import os
import time
from typing import TYPE_CHECKING

from octavo.weights.fetch_file import Fetch, SourceFailed

if TYPE_CHECKING:
    import httpx

CONNECT_SECONDS = 4.0  # no hub within this: try the next source
READ_SECONDS = 20.0
MAX_ATTEMPTS = 5


def hub_endpoint() -> str:
    return os.environ.get("HF_ENDPOINT", "https://huggingface.co").rstrip("/")


def offline() -> bool:
    """Whether HF_HUB_OFFLINE forbids asking the hub."""
    return os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "TRUE", "YES", "ON")


def from_hub(fetch: Fetch) -> None:
    """Fill ``fetch.partial``. No token is sent: demo models are public. Raises SourceFailed."""
    import httpx  # only who downloads needs it

    if offline():
        raise SourceFailed("HF_HUB_OFFLINE is set")
    assert fetch.model.hub is not None
    hub = fetch.model.hub
    url = f"{hub_endpoint()}/{hub.repo}/resolve/{hub.revision}/{hub.file}"
    timeout = httpx.Timeout(READ_SECONDS, connect=CONNECT_SECONDS)
    with httpx.Client(timeout=timeout, follow_redirects=True) as client:
        for attempt in range(MAX_ATTEMPTS):
            before = fetch.resume()
            try:
                _attempt(client, url, fetch)
                return
            except httpx.HTTPError as error:
                # Nothing at all at the first attempt means no hub here; a break midway is worth another try.
                if fetch.size == before and attempt == 0:
                    raise SourceFailed(f"no answer from {hub_endpoint()} ({type(error).__name__})") from None
                if attempt + 1 == MAX_ATTEMPTS:
                    raise SourceFailed(f"broke off {MAX_ATTEMPTS} times, last at {fetch.size} bytes") from None
            time.sleep(0.2 * 2**attempt)


def _attempt(client: "httpx.Client", url: str, fetch: Fetch) -> None:
    """Append what is missing; a server that ignores the range sends the whole file again."""
    start = fetch.size
    if start == fetch.model.size:
        return
    headers = {"Accept-Encoding": "identity"} | ({"Range": f"bytes={start}-"} if start else {})
    with client.stream("GET", url, headers=headers) as response:
        if response.status_code == 416:
            fetch.partial.unlink(missing_ok=True)
            raise SourceFailed("refused the range; its file is not the known one")
        if response.status_code not in (200, 206):
            raise SourceFailed(f"answered {response.status_code} for {url}")
        if start and response.status_code == 200:
            fetch.restart(fetch.partial)
        with open(fetch.partial, "ab") as file:
            for chunk in response.iter_raw():
                fetch.write(file, chunk)
                fetch.show(fetch.size)
