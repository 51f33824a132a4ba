"""From the engine's tokens to a caller's text: one Collector for each sequence."""

from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import replace

from octavo.base import scores
from octavo.base.params import SamplingParams
from octavo.base.wire import TokenOutput
from octavo.text.detokenize import characters
from octavo.text.graphemes import EmojiGuard
from octavo.text.logprobs import PositionLogprobs, Positions, described
from octavo.text.parse.base import Event
from octavo.text.parse.message import Speaker
from octavo.text.stops import StopFinder
from octavo.text.tokenizer import Tokenizer


class TextDelta(Struct, frozen=True):
    """What one engine output adds. `finish_reason` is set exactly once; what follows it is empty.

    `text` may lag behind `tokens`: part of a character, of an emoji or of a stop string waits. `needs_abort`: the
    text has ended by a stop string and the engine does not know it yet. `events`: what the text means, where the
    model's dialects are read; `text` is then what of it is for the user.
    """

    text: str = ""
    tokens: list[int] = []
    logprobs: Positions | None = None  # one a token
    prompt_logprobs: list[PositionLogprobs | None] | None = None  # all positions at once, before the first token
    finish_reason: str | None = None  # "stop", "length", "abort", "error"
    stop_reason: str | int | None = None  # the stop string, or the caller's stop token; None for end of sequence
    needs_abort: bool = False
    events: list[Event] | None = None


class Collector:
    """Detokenizes one sequence, finds its stop strings, keeps its totals.

    `index` is its place among siblings. With `echo` the first delta begins with the prompt's text. With
    `hide_output` the engine's token is dropped: the caller asked for the prompt only. All deltas' texts joined are
    `text`, whatever the cut of tokens into outputs. `speaker` reads thoughts and calls out of the text; `shown` are
    special tokens that it must see.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        params: SamplingParams,
        prompt_tokens: Sequence[int],
        *,
        index: int = 0,
        prompt_text: str | None = None,
        echo: bool = False,
        hide_output: bool = False,
        speaker: Speaker | None = None,
        shown: frozenset[int] = frozenset(),
    ) -> None:
        self.index = index
        self.prompt_tokens = prompt_tokens
        self.tokens: list[int] = []
        self.logprobs = Positions(tokenizer)
        self.prompt_logprobs: list[PositionLogprobs | None] | None = None
        self.cached_tokens = 0
        self.finish_reason: str | None = None
        self.error: str | None = None  # what went wrong, with the reason "error"
        self.stop_reason: str | int | None = None
        self._tokenizer = tokenizer
        self._params = params
        self.speaker = speaker
        self._prompt_text = prompt_text
        self._echo = echo
        self._hide_output = hide_output
        self._stop_ids = frozenset(params.stop_token_ids or ())
        self._include_stop = params.include_stop_str_in_output
        self._texts: list[str] = []
        self._prompt_run = b""
        self._prompt_done = False
        self._characters = (
            characters(tokenizer, prompt_tokens, skip_special=params.skip_special_tokens, shown=shown)
            if params.detokenize
            else None
        )
        self._stops = StopFinder(params.stops, include=self._include_stop) if params.stops else None
        self._guard = EmojiGuard()
        # Nothing but text to make of a token: the road of most outputs.
        self._plain = self._stops is None and self._characters is not None
        self._scored = params.logprobs is not None

    @property
    def text(self) -> str:
        """All text so far, the echoed prompt included."""
        return "".join(self._texts)

    @property
    def num_prompt_tokens(self) -> int:
        return len(self.prompt_tokens)

    @property
    def num_output_tokens(self) -> int:
        """Tokens generated, those included that completed a stop string or ended the sequence."""
        return len(self.tokens)

    @property
    def patient(self) -> bool:
        """Whether nothing in the text can end the sequence, so that its tokens may as well be fed all at the end."""
        return self._stops is None and self.speaker is None

    @property
    def prompt_text(self) -> str:
        """The prompt as text: as the caller gave it, or decoded."""
        if self._prompt_text is None:
            self._prompt_text = self._tokenizer.decode(self.prompt_tokens, skip_special=False)
        return self._prompt_text

    def feed(self, output: TokenOutput) -> TextDelta:
        """What this output adds; an empty delta once the sequence has ended."""
        if self.finish_reason is not None:
            return TextDelta()
        tokens = output.tokens
        if self._plain and self._prompt_done and output.finish is None and not self._hide_output:
            assert self._characters is not None
            text = self._guard.feed(self._characters.feed(tokens))
            self.tokens += tokens
            logprobs = self._logprobs(output, len(tokens))
            if self.speaker is not None:
                return self._spoken(text, TextDelta(tokens=tokens, logprobs=logprobs))
            self._texts.append(text)
            return TextDelta(text, tokens, logprobs)
        self.cached_tokens = max(self.cached_tokens, output.cached_tokens)
        if output.prompt_logprobs:
            self._prompt_run += output.prompt_logprobs
        if output.finish == "error":
            self.finish_reason, self.error = "error", output.error
            return TextDelta(finish_reason="error")
        head, prompt_logprobs = self._prompt(output)
        if self._hide_output:
            kept, text = 0, ""
        else:
            kept, text = self._decode(output)
        matched = self._stops is not None and self._stops.match is not None
        if matched or output.finish is not None:
            text += self._finish(output)
        tokens = tokens[:kept]
        self.tokens += tokens
        if self.speaker is None:
            text = head + text
            if text:
                self._texts.append(text)
        elif head:
            self._texts.append(head)
        delta = TextDelta(
            text=text if self.speaker is None else head,
            tokens=tokens,
            logprobs=self._logprobs(output, kept),
            prompt_logprobs=prompt_logprobs,
            finish_reason=self.finish_reason,
            stop_reason=self.stop_reason,
            needs_abort=matched and output.finish is None,
        )
        return delta if self.speaker is None else self._spoken(text, delta)

    def _spoken(self, text: str, delta: TextDelta) -> TextDelta:
        """`delta` with what the new text means. A message that may hold one call ends with it."""
        speaker = self.speaker
        assert speaker is not None
        shown, events = speaker.feed(text, len(delta.tokens), self.finish_reason is not None)
        if shown:
            self._texts.append(shown)
        needs_abort = delta.needs_abort
        if speaker.full and self.finish_reason is None:
            self.finish_reason, needs_abort = "stop", True
        return replace(
            delta,
            text=delta.text + shown,
            events=events,
            finish_reason=self.finish_reason,
            needs_abort=needs_abort,
        )

    def _decode(self, output: TokenOutput) -> tuple[int, str]:
        """How many of the tokens count, and the text that may be shown."""
        tokens = output.tokens
        if self._characters is None:
            return len(tokens), ""
        silent = (
            output.finish == "stop"
            and not self._include_stop
            and bool(tokens)
            and output.stop_token is not None
            and tokens[-1] == output.stop_token
        )
        spoken = tokens[:-1] if silent else tokens
        if self._stops is None:
            return len(tokens), self._guard.feed(self._characters.feed(spoken))
        shown = ""
        for index, token in enumerate(spoken):
            # A stop string counts once its last character comes from a token past min_tokens.
            armed = len(self.tokens) + index + 1 > self._params.min_tokens
            shown += self._stops.feed(self._characters.feed((token,)), armed=armed)
            if self._stops.match is not None:
                return index + 1, self._guard.feed(shown)
        return len(tokens), self._guard.feed(shown)

    def _finish(self, output: TokenOutput) -> str:
        """Set the reasons, and give the text that was held back."""
        rest = ""
        if self._characters is not None and not self._hide_output:
            if self._stops is None:
                rest = self._characters.flush()
            elif self._stops.match is None:
                armed = len(self.tokens) + len(output.tokens) > self._params.min_tokens
                rest = self._stops.feed(self._characters.flush(), armed=armed) + self._stops.flush()
            rest = self._guard.feed(rest) + self._guard.flush()
        if self._stops is not None and self._stops.match is not None:
            self.finish_reason, self.stop_reason = "stop", self._stops.match.stop
        else:
            self.finish_reason = "length" if self._hide_output and output.finish == "stop" else output.finish
            if output.finish == "stop" and output.stop_token in self._stop_ids and not self._hide_output:
                self.stop_reason = output.stop_token
        return rest

    def _prompt(self, output: TokenOutput) -> tuple[str, list[PositionLogprobs | None] | None]:
        """The echoed prompt and its log-probabilities, once, when all of the prompt has been computed."""
        if self._prompt_done or (not output.tokens and output.finish is None):
            return "", None
        self._prompt_done = True
        if self._params.prompt_logprobs is not None:
            run = described(self._tokenizer, self._prompt_run)
            first = [None] if len(run) == len(self.prompt_tokens) - 1 else []  # nothing stands before it
            self.prompt_logprobs = [*first, *run]
            self._prompt_run = b""
        return self.prompt_text if self._echo else "", self.prompt_logprobs

    def _logprobs(self, output: TokenOutput, kept: int) -> Positions | None:
        if not self._scored:
            return None
        lines = output.logprobs if kept == len(output.tokens) else scores.cut(output.logprobs, 0, kept)
        self.logprobs.add(lines)
        return Positions(self._tokenizer, lines)
