"""The exception tree. What a user can cause is a UserError; what an operator can cause is a ConfigError.

OctavoError
├── UserError            one request is at fault; carries an HTTP status and the field's name
│   ├── NotFound         404
│   ├── TooLarge         413
│   ├── Overloaded       429, with the seconds to wait
│   └── Unavailable      503, with the seconds to wait
├── ConfigError          a flag, a config file, a model's config; one line on the command line
│   ├── NoRoom           memory is short, of a device or of the host
│   └── UnknownName      a name that no registry holds, with the nearest known ones
├── ModelFileError       a weight or tokenizer file that cannot be read; names the file
└── EngineError          the engine failed; `EngineDead` when it will not answer again
    └── EngineDead
"""

from collections.abc import Iterable
from difflib import get_close_matches


class OctavoError(Exception):
    """Root of all errors raised on purpose."""


class UserError(OctavoError):
    """A request that cannot be served as it stands.

    `param` is the path of the field at fault (``messages[0].content``), `code` a stable short word.
    """

    status = 400
    kind = "invalid_request_error"

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.code = code


def bad_value(path: str, what: str) -> UserError:
    """For a field whose value cannot be; `what` goes on from its name: ``must be a string``."""
    return UserError(f"{path} {what}.", param=path, code="invalid_value")


def missing(path: str) -> UserError:
    """For a field that has to be there."""
    return UserError(f"{path} is missing.", param=path, code="missing_required_parameter")


class NotFound(UserError):
    status = 404
    kind = "not_found_error"


class TooLarge(UserError):
    status = 413


class Overloaded(UserError):
    status = 429
    kind = "rate_limit_error"

    def __init__(self, message: str, *, retry_after_s: float = 1.0) -> None:
        super().__init__(message, code="overloaded")
        self.retry_after_s = retry_after_s


class Unavailable(UserError):
    status = 503
    kind = "service_unavailable_error"

    def __init__(self, message: str, *, retry_after_s: float = 5.0) -> None:
        super().__init__(message, code="unavailable")
        self.retry_after_s = retry_after_s


def asleep(message: str) -> Unavailable:
    """What a request is told that finds the engine asleep: a 503 of that code."""
    error = Unavailable(message)
    error.code = "asleep"
    return error


class ConfigError(OctavoError):
    """Something the operator gave cannot work. The message is one line and says what to change."""


class NoRoom(ConfigError):
    """A start does not fit the memory there is. The message names what is wanted, what is free and a flag to change."""


class UnknownName(ConfigError):
    """A name that is not in a table of names."""

    def __init__(self, what: str, name: str, known: Iterable[str]) -> None:
        names = sorted(known)
        near = get_close_matches(name[:80], names, n=3, cutoff=0.5)  # a caller's name may be of any length
        hint = f"did you mean {' or '.join(near)}?" if near else f"known: {', '.join(names)}"
        super().__init__(f"unknown {what} {name[:80]!r}; {hint}")
        self.name = name


class ModelFileError(OctavoError):
    """A model file that is truncated, corrupt, or of a kind that is refused."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{path}: {reason}")
        self.path = path
        self.reason = reason


class EngineError(OctavoError):
    """The engine could not finish a step."""


class EngineDead(EngineError):
    """The engine's process is gone or no longer answers."""
