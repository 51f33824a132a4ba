"""Tokens of several steps that can wait to be delivered, since nothing else is to be said of them."""

from octavo.base.wire import Outputs


class Plain:
    """Tokens by request, and the lines of their log-probabilities for who asked."""

    __slots__ = ("lines", "tokens")

    def __init__(self) -> None:
        self.tokens: dict[str, list[int]] = {}
        self.lines: dict[str, bytes] = {}

    def add(self, step: Outputs) -> None:
        """What another step has in its columns."""
        tokens, lines = self.tokens, self.lines
        for id, token in zip(step.ids, step.tokens):
            if id in tokens:
                tokens[id].append(token)
            else:
                tokens[id] = [token]
        for id, line in zip(step.ids, step.logprobs):
            if line:
                lines[id] = lines[id] + line if id in lines else line
