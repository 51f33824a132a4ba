"""The numbers that bound the scheduler."""

from msgspec import Struct


class Slicing(Struct, frozen=True, kw_only=True):
    """How long a slice of a prompt beside others is, in tokens of a prompt without a past, or in what costs as much."""

    tokens: int = 0  # of one request in a step, unless it is alone; 0: no limit
    reach: int = 0  # past at which a token costs twice as much; 0: the past costs nothing
    beside: float = 0.0  # how much longer a slice may be for each token behind those who decode
    together: int = 0  # tokens of several prompts in a step; 0: no limit


class Limits(Struct, frozen=True, kw_only=True):
    """Settled at start-up; see base/config.py for what each means."""

    max_model_len: int
    max_num_seqs: int
    max_num_batched_tokens: int
    slicing: Slicing = Slicing()  # of prompts beside others; none
    max_waiting: int = 1024
    max_waiting_tokens: int = 1 << 24
    scheduling_policy: str = "fair"
    prefix_caching: bool = True

    @property
    def max_rows(self) -> int:
        """Requests in one step. No more than its tokens, so that each running request advances in each step."""
        return min(self.max_num_seqs, self.max_num_batched_tokens)
