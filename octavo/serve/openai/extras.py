"""Fields that another dialect does not know by itself and hands to chat: samplers, constraints, template arguments.

Chat decides about each as if it had come there: taken, refused by name, or named in X-Octavo-Ignored.
"""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import msgspec

from octavo.base.errors import UserError
from octavo.serve.errors import invalid_json

# The dialects stream from chat in their own way, whatever the caller is given.
_OWN = frozenset({"stream", "stream_options", "n"})


def passed_on(unknown: Mapping[str, msgspec.Raw], elsewhere: Mapping[str, str]) -> dict[str, msgspec.Raw]:
    """What goes to chat under its own name. UserError for what would break the form of the answer, and for fields of
    chat that have another name here: `elsewhere` says which, "" where there is none."""
    choices = unknown.get("n")
    if choices is not None and bytes(choices) not in (b"1", b"null"):
        raise UserError("n: this endpoint gives one answer.", param="n", code="unsupported_value")
    for name in unknown.keys() & elsewhere.keys():
        if bytes(unknown[name]) not in (b"null", b"false"):
            here = f"it is called {elsewhere[name]} here" if elsewhere[name] else "there is none here"
            raise UserError(f"{name} is a field of chat completions; {here}.", param=name, code="unsupported_parameter")
    return {name: raw for name, raw in unknown.items() if name not in _OWN and name not in elsewhere}


@contextmanager
def own_words(names: Mapping[str, str], unknown: Mapping[str, msgspec.Raw]) -> Iterator[None]:
    """Makes chat's UserErrors name fields as the caller wrote them.

    `names`: pattern of the beginning of a path in chat's body, and what it is here. A field that the caller gave under
    chat's own name, one of `unknown`, keeps it.
    """
    try:
        yield
    except (UserError, msgspec.DecodeError) as error:
        exc = error if isinstance(error, UserError) else invalid_json(error)
        theirs = exc.param or ""
        if re.split(r"[.\[]", theirs)[0] not in unknown:
            found = next(filter(None, (re.match(pattern, theirs) for pattern in names)), None)
            if found is not None:
                head = found.expand(names[found.re.pattern])
                exc.param = head + theirs[found.end() :]
                if exc.message.startswith(found[0]):
                    exc.message = head + exc.message[found.end() :]
        raise exc from None
