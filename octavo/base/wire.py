"""The first waist: everything that passes between an API process and the engine process.

Frozen, array-encoded msgpack structs; no strings of the user's text, no media, no torch.
Text-side names (stop strings, bad words as text) are already turned into token ids here.
"""

from msgspec import Struct


class Sampling(Struct, frozen=True, array_like=True):
    """Resolved sampling rules of one sequence. Every number has been bounded by the text side."""

    seed: int  # always set; unsigned 64 bit; the stream is keyed by (seed, position)
    max_tokens: int  # at least 1
    min_tokens: int = 0
    temperature: float = 1.0  # 0: greedy
    top_p: float = 1.0
    top_k: int = 0  # 0: off
    min_p: float = 0.0
    typical_p: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    bad_words: tuple[tuple[int, ...], ...] = ()  # each a token sequence that must not be completed
    allowed_token_ids: tuple[int, ...] = ()  # empty: all
    eos_token_ids: tuple[int, ...] = ()  # end of sequence; empty under ignore_eos
    stop_token_ids: tuple[int, ...] = ()  # the caller's own; obeyed under ignore_eos too
    logprobs: int = -1  # -1: none; k: the chosen token's and the k likeliest
    prompt_logprobs: int = -1
    logprob_token_ids: tuple[int, ...] = ()  # report these, in this order, instead of the likeliest
    eos_ruled: bool = False  # a constraint says when an end of sequence may come, and min_tokens does not


class Progress(Struct, frozen=True, array_like=True):
    """How far a request had come in an engine that is gone. The next one goes on from here and says nothing twice."""

    tokens: list[int]  # its output, all of it delivered
    scored: int = 0  # prompt positions whose log-probabilities were delivered
    cached_tokens: int = -1  # as it was first told; -1: it had not run
    queued_s: float = 0.0


class EngineRequest(Struct, frozen=True, array_like=True, tag="request"):
    """One sequence to continue. n > 1 arrives as siblings that share their prompt."""

    id: str
    tokens: list[int]
    sampling: Sampling
    priority: int = 0  # lower runs earlier, as in vLLM
    cache_salt: str = ""
    max_wait_s: float = 0.0  # a request that has not started after so many seconds is refused; 0: it may wait
    riders: dict[str, bytes] = {}  # a feature's own struct, encoded, by the feature's name; the core never opens it
    tenant: str = ""  # whose request it is, for policies that share between callers; no key can be read from it
    progress: Progress | None = None  # `tokens` stays the prompt alone


class Abort(Struct, frozen=True, array_like=True, tag="abort"):
    ids: list[str]


class Control(Struct, frozen=True, array_like=True, tag="control"):
    """A call to a named engine command (engine/control.py); answered by ControlReply with the same id."""

    id: int
    command: str
    args: dict[str, str | int | float | bool | None] = {}


class Vocabulary(Struct, frozen=True, array_like=True, tag="vocabulary"):
    """What the tokens stand for, for features of the engine that must know. Sent once, after Ready."""

    tokens: list[bytes]  # by id; empty where an id has no text
    special: list[int]  # ids that carry structure and no text of their own; their entry in `tokens` is their name
    ends: list[int]  # end of sequence


class Shutdown(Struct, frozen=True, array_like=True, tag="shutdown"):
    pass


EngineInput = EngineRequest | Abort | Control | Vocabulary | Shutdown


class TokenOutput(Struct, frozen=True, array_like=True):
    """What one step did for one request. `finish` is set exactly once, on the last one."""

    id: str
    tokens: list[int]
    finish: str | None = None  # "stop", "length", "abort", "error"
    stop_token: int | None = None  # the id that ended it, when one did
    logprobs: bytes = b""  # one line (base/scores) a token; empty where none were asked for
    prompt_logprobs: bytes = b""  # lines of the next run of prompt positions
    cached_tokens: int = 0  # prompt tokens found in the prefix cache
    error: str | None = None  # fixed catalogue text, with finish == "error"
    error_code: int = 500  # the HTTP status that fits the error
    error_param: str | None = None  # the field at fault, as UserError.param
    error_name: str | None = None  # a stable short word, as UserError.code
    queued_s: float = 0.0  # how long it waited before it first ran
    preemptions: int = 0  # how often it was put back to wait; said with `finish`
    retry_after_s: float = 0.0  # with an error of overload: when it may be worth another try


class EngineStats(Struct, frozen=True, array_like=True):
    """Gauges at the end of a step and counters since the engine began."""

    running: int = 0
    waiting: int = 0
    kv_usage: float = 0.0  # owned blocks over all blocks
    kv_waste: float = 0.0  # reserved and unused slots over reserved slots
    steps: int = 0
    prompt_tokens: int = 0  # computed, cache hits not counted
    generation_tokens: int = 0
    preemptions: int = 0
    prefix_queries: int = 0  # tokens looked up
    prefix_hits: int = 0  # tokens found
    failures: int = 0  # steps that raised
    corrupted: int = 0  # sequences ended by logits that are no numbers
    figures: dict[str, float] = {}  # a feature's own counters, by name
    asleep: int = 0  # level at which device memory is given back; 0: awake


class Outputs(Struct, frozen=True, array_like=True):
    """What was done for many requests. Most steps give most requests one more token and nothing else to say: these
    stand in columns, and a request that stands there is not in `outputs`."""

    outputs: list[TokenOutput] = []
    ids: list[str] = []
    tokens: list[int] = []  # one for each of `ids`
    logprobs: list[bytes] = []  # a line for each of them, empty for who asked for none; no entries where nobody asked

    def each(self) -> list[TokenOutput]:
        """All of them in the one form."""
        lines = self.logprobs or [b""] * len(self.ids)
        plain = zip(self.ids, self.tokens, lines)
        return [*self.outputs, *(TokenOutput(id, [token], logprobs=line) for id, token, line in plain)]


class StepOutputs(Outputs, frozen=True, array_like=True, tag="outputs"):
    """What a step did, and where the engine stands after it."""

    stats: EngineStats = EngineStats()


class ControlReply(Struct, frozen=True, array_like=True, tag="reply"):
    id: int
    value: str | int | float | bool | dict[str, str | int | float | bool | None] | None = None
    error: str | None = None


class Ready(Struct, frozen=True, array_like=True, tag="ready"):
    """Sent once when the engine can take requests: what start-up settled."""

    max_model_len: int
    vocab_size: int
    num_blocks: int
    block_size: int
    max_num_seqs: int
    max_num_batched_tokens: int
    notes: list[str]  # one line each: what was fitted, and why
    phases: dict[str, float] = {}  # seconds of each start-up phase
    device: str = ""  # "cpu" or "cuda"


class Fatal(Struct, frozen=True, array_like=True, tag="fatal"):
    """The engine cannot go on; the message is one line."""

    message: str


EngineOutput = StepOutputs | ControlReply | Ready | Fatal

MEMORY_TAGS = ("weights", "kv_cache")
"""What an engine that sleeps gives back, by vLLM's names."""

SLEEP_STATES = ("awake", "weights_offloaded", "discard_all")
"""vLLM's names of the levels at which an engine sleeps: 0, 1, 2."""

FINISH_REASONS = ("stop", "length", "abort", "error")
