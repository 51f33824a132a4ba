"""Addresses of servers, as people write them."""

from urllib.parse import SplitResult, urlsplit


def http_parts(url: str) -> SplitResult | None:
    """The parts of an ``http`` or ``https`` URL with a host, and a port that there can be; None for anything else."""
    try:
        parts = urlsplit(url)
        usable = parts.port != 0
    except ValueError:  # half of an IPv6 address, a port beyond 65535
        return None
    usable = usable and url.isprintable() and " " not in url
    return parts if usable and parts.scheme in ("http", "https") and parts.hostname else None
