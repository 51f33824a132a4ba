"""How a request ends, and the last thing that is said about it."""

from msgspec.structs import replace

from octavo.base.errors import Overloaded, UserError
from octavo.base.plan import NONE_LEFT
from octavo.base.wire import TokenOutput
from octavo.sched.request import Request

BAD_LOGITS = "the model gave no finite probabilities for this request"
NOTHING_ALLOWED = "No token is left to choose: together the request's rules and constraint forbid every one."


def cut(request: Request, accepted: list[int]) -> tuple[list[int], str | None, int | None]:
    """Those of the `accepted` tokens that count, the finish reason if they end the request, and the token that did.

    The order of tests is vLLM's: a stop token wins over the length. Before `min_tokens` no token stops, but for ends
    that a constraint has ruled on.
    """
    known = len(request.tokens)
    for i, token in enumerate(accepted):
        if token < 0:
            return accepted[:i], "error", None
        known += 1
        if token in request.ends and (known >= request.min_known or token in request.ruled_ends):
            return accepted[: i + 1], "stop", token
        if known >= request.limit:
            return accepted[: i + 1], "length", None
    return accepted, None, None


def failed(output: TokenOutput, token: int) -> TokenOutput:
    """An output that ends since nothing could be chosen; `token` says why (StepResult.tokens)."""
    if token == NONE_LEFT:
        return replace(output, error=NOTHING_ALLOWED, error_code=400, error_name="no_token_left")
    return replace(output, error=BAD_LOGITS)


def ended(request: Request, finish: str, error: str | UserError | None = None) -> TokenOutput:
    """A last output that brings no token."""
    cached = max(0, request.cached_tokens)
    if isinstance(error, UserError):
        return replace(refused(request.id, error), cached_tokens=cached, queued_s=request.queued_s)
    return TokenOutput(request.id, [], finish, cached_tokens=cached, error=error, queued_s=request.queued_s)


def refused(id: str, error: UserError) -> TokenOutput:
    """The only output of a request that was not taken."""
    return TokenOutput(
        id,
        [],
        "error",
        error=error.message,
        error_code=error.status,
        error_param=error.param,
        error_name=error.code,
        retry_after_s=error.retry_after_s if isinstance(error, Overloaded) else 0.0,
    )
