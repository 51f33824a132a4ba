"""What a key may take: requests and tokens a minute, requests at once. Over a limit is 429, as OpenAI says it.

Rates are buckets that hold a minute's worth and refill evenly. Output tokens count once they are made, so a bucket can
be in debt; the next request waits until that is paid.
"""

import time
from collections.abc import Callable

from octavo.serve.auth import Caller
from octavo.serve.errors import RateLimited
from octavo.serve.keyfile import UNLIMITED, KeyLimits

Header = tuple[bytes, bytes]

MAX_KEPT = 8192  # tenants whose buckets are remembered; full ones without requests can be forgotten
BUSY_WAIT_S = 1.0  # when a place will be free nobody knows


class Bucket:
    """`size` a minute."""

    __slots__ = ("_at", "_clock", "_level", "size")

    def __init__(self, size: int, clock: Callable[[], float]) -> None:
        self.size = size
        self._clock = clock
        self._level = float(size)
        self._at = clock()

    @property
    def level(self) -> float:
        """What is left; below zero after a debt."""
        now = self._clock()
        self._level = min(float(self.size), self._level + (now - self._at) * self.size / 60.0)
        self._at = now
        return self._level

    def spend(self, amount: float) -> None:
        """Takes it, whatever is left."""
        self._level = self.level - amount

    def wait_s(self, level: float) -> float:
        """Seconds until so much is there."""
        return max(0.0, (min(level, float(self.size)) - self.level) * 60.0 / self.size)


class Quota:
    """The counts of one tenant."""

    def __init__(self, limits: KeyLimits, clock: Callable[[], float]) -> None:
        self._clock = clock
        self.running = 0
        self.adopt(limits)

    def adopt(self, limits: KeyLimits) -> None:
        """These limits from now on, with full buckets."""
        self.limits = limits
        self.requests = Bucket(limits.requests, self._clock) if limits.requests else None
        self.tokens = Bucket(limits.tokens, self._clock) if limits.tokens else None

    @property
    def idle(self) -> bool:
        """Whether forgetting it would change nothing."""
        buckets = [bucket for bucket in (self.requests, self.tokens) if bucket]
        return not self.running and all(bucket.level >= bucket.size for bucket in buckets)

    def headers(self) -> list[Header]:
        """OpenAI's ``x-ratelimit-*``."""
        found: list[Header] = []
        for name, bucket in ((b"requests", self.requests), (b"tokens", self.tokens)):
            if bucket is not None:
                found += [
                    (b"x-ratelimit-limit-" + name, str(bucket.size).encode()),
                    (b"x-ratelimit-remaining-" + name, str(max(0, int(bucket.level))).encode()),
                    (b"x-ratelimit-reset-" + name, span(bucket.wait_s(bucket.size)).encode()),
                ]
        return found


class Quotas:
    """All tenants with limits."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._kept: dict[str, Quota] = {}

    def meter(self, caller: Caller) -> "Meter":
        """For one request of this caller."""
        if caller.limits == UNLIMITED:
            return Meter()
        quota = self._kept.get(caller.tenant)
        if quota is None:
            if len(self._kept) >= MAX_KEPT:
                self._kept = {name: each for name, each in self._kept.items() if not each.idle}
            quota = self._kept[caller.tenant] = Quota(caller.limits, self._clock)
        elif quota.limits != caller.limits:  # the key file has changed
            quota.adopt(caller.limits)
        return Meter(quota)


class Meter:
    """Counts one HTTP request once, whatever endpoints ask each other on its behalf."""

    __slots__ = ("_begun", "_paid", "_quota")

    def __init__(self, quota: Quota | None = None) -> None:
        self._quota = quota
        self._begun = False
        self._paid = False  # a line of a batch that had to wait begins again, and is one request all the same

    def begin(self) -> None:
        """The request asks for inference. Raises RateLimited."""
        quota = self._quota
        if quota is None or self._begun:
            return
        most = quota.limits.concurrent
        if most and quota.running >= most:
            raise self._over(f"This key may have {most} requests at once.", BUSY_WAIT_S)
        if quota.requests and quota.requests.level < 1 and not self._paid:
            raise self._over(f"This key may make {quota.requests.size} requests a minute.", quota.requests.wait_s(1))
        if quota.tokens and quota.tokens.level <= 0:
            raise self._over(f"This key may take {quota.tokens.size} tokens a minute.", quota.tokens.wait_s(1))
        if quota.requests and not self._paid:
            quota.requests.spend(1)
            self._paid = True
        quota.running += 1
        self._begun = True

    def prompt(self, tokens: int) -> list[Header]:
        """The prompt's tokens are known: counts them. RateLimited if they are too many now.

        A prompt larger than a minute's worth is let in when nothing else was taken; it could never be otherwise.
        """
        quota = self._quota
        if quota is None:
            return []
        bucket = quota.tokens
        if bucket is not None:
            wanted = min(tokens, bucket.size)
            if bucket.wait_s(wanted) > 0.001:
                raise self._over(
                    f"This key may take {bucket.size} tokens a minute; the prompt has {tokens}.", bucket.wait_s(wanted)
                )
            bucket.spend(tokens)
        return quota.headers()

    def output(self, tokens: int) -> None:
        """So many were made."""
        if self._quota is not None and self._quota.tokens is not None:
            self._quota.tokens.spend(tokens)

    def end(self) -> None:
        """The request is over. Safe to call again."""
        if self._begun and self._quota is not None:
            self._quota.running -= 1
            self._begun = False

    def _over(self, message: str, wait_s: float) -> RateLimited:
        assert self._quota is not None
        return RateLimited(message, wait_s, tuple(self._quota.headers()))


def span(seconds: float) -> str:
    """As OpenAI writes times: 20ms, 7.5s, 1m30s."""
    if seconds < 1:
        return f"{int(seconds * 1000)}ms"
    minutes, rest = divmod(seconds, 60)
    return f"{int(minutes)}m{int(rest)}s" if minutes else f"{rest:.3g}s"
