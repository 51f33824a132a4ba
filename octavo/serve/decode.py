"""From bytes to a checked struct: depth first, then msgspec in strict mode, then the fields nobody knows.

Strict means no coercion anywhere: ``"0.5"`` is not a number, ``1.0`` and ``1E+2`` are not integers, ``true`` is not 1,
``NaN`` and ``Infinity`` are not JSON, ``1e400`` is out of range. Of a repeated key the last one counts.
"""

import re
from contextlib import suppress
from typing import Any, Generic, TypeVar

import msgspec
from msgspec import Struct, inspect

from octavo.base.config import LimitsConfig
from octavo.base.errors import UserError, bad_value

MAX_CONTAINERS = 65_536
MAX_STRINGS = 131_072  # keys included
MAX_VALUES = 1 << 20  # token ids of a prompt, mostly
MAX_TOP_KEYS = 256

_NOT_BRACKETS = bytes(byte for byte in range(256) if byte not in b"[]{}")

_HALF_A_PAIR = re.compile(
    rb"\\u[dD][89abAB][0-9a-fA-F]{2}(?!\\u[dD][c-fC-F][0-9a-fA-F]{2})"
    rb"|(?<!\\u[dD][89abAB][0-9a-fA-F]{2})\\u[dD][c-fC-F][0-9a-fA-F]{2}"
)

T = TypeVar("T", bound=Struct)


def check_shape(body: bytes, limits: LimitsConfig) -> None:
    """UserError when the body nests deeper or holds more keys and values than any honest request.

    Runs before the decoder does, without recursion and at the speed of bytes methods: the decoder would make a Python
    object of each value while all other requests wait.
    """
    brackets = body.count(b"[") + body.count(b"{")
    quotes = body.count(b'"')
    few = quotes <= min(MAX_STRINGS, 2 * limits.max_json_keys)
    few = few and (len(body) < MAX_VALUES or body.count(b",") < MAX_VALUES)
    if brackets <= limits.max_json_depth and few:
        return
    rest = _outside_strings(body)
    if rest.count(b",") >= MAX_VALUES:
        raise UserError(f"The body holds more than {MAX_VALUES} values.", code="invalid_json")
    if rest.count(b":") > limits.max_json_keys:
        raise UserError(f"The body holds more than {limits.max_json_keys} keys.", code="invalid_json")
    if brackets <= limits.max_json_depth:
        return
    rest = rest.translate(None, _NOT_BRACKETS)
    if len(rest) > 2 * MAX_CONTAINERS:
        raise UserError(f"The body holds more than {MAX_CONTAINERS} lists and objects.", code="invalid_json")
    _check_depth(rest, limits.max_json_depth)


def _outside_strings(body: bytes) -> bytes:
    """What stands between the strings. Of a run of backslashes pairs are escaped ones; one that is left escapes."""
    unescaped = body.replace(b"\\\\", b"").replace(b'\\"', b"") if b"\\" in body else body
    if unescaped.count(b'"') > 2 * MAX_STRINGS:
        raise UserError(f"The body holds more than {MAX_STRINGS} strings.", code="invalid_json")
    return b"".join(unescaped.split(b'"')[::2])


def _check_depth(brackets: bytes, max_depth: int) -> None:
    """Each pass removes the innermost empty pairs, so well-formed JSON of depth d is gone after d passes."""
    rest = brackets
    for _ in range(max_depth):
        shorter = rest.replace(b"[]", b"").replace(b"{}", b"")
        if not shorter:
            return
        if len(shorter) == len(rest):
            break
        rest = shorter
    raise UserError(f"The body is not valid JSON, or nests deeper than {max_depth}.", code="invalid_json")


class Schema(Generic[T]):
    """A request struct with its decoder and the names it knows."""

    def __init__(self, struct: type[T], silent: frozenset[str] = frozenset()) -> None:
        """`silent`: fields accepted without effect on the answer, and so not reported as ignored."""
        self._struct = struct
        self._decoder = msgspec.json.Decoder(struct)
        closed = msgspec.defstruct(struct.__name__, [], bases=(struct,), kw_only=True, forbid_unknown_fields=True)
        self._closed: msgspec.json.Decoder[T] = msgspec.json.Decoder(closed)
        self._top = msgspec.json.Decoder(dict[str, msgspec.Raw])
        self._known = frozenset(struct.__struct_encode_fields__) | silent

    def decode(self, body: bytes, limits: LimitsConfig = LimitsConfig()) -> tuple[T, dict[str, msgspec.Raw]]:  # noqa: B008 - frozen
        """The struct, and the fields it does not know as raw JSON."""
        check_shape(body, limits)
        with suppress(msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
            return self._closed.decode(body), {}  # most bodies: one pass tells that there is nothing unknown
        try:
            top = self._top.decode(body)
            if len(top) > MAX_TOP_KEYS:
                raise UserError(f"The body has more than {MAX_TOP_KEYS} fields.", code="invalid_json")
            unknown = {name: raw for name, raw in top.items() if name not in self._known}
            return self._decoder.decode(body), unknown
        except (RecursionError, UnicodeDecodeError) as exc:
            raise UserError("The body is not valid JSON.", code="invalid_json") from exc
        except msgspec.ValidationError as exc:
            raise self._named(exc) from None
        except msgspec.DecodeError:
            if not _HALF_A_PAIR.search(body):
                raise
            # msgspec calls it truncated data, or a bad escape.
            reason = "an escape from \\ud800 to \\udfff stands without its other half"
            raise UserError(f"The body is not valid JSON: {reason}.", code="invalid_json") from None

    def _named(self, exc: msgspec.ValidationError) -> Exception:
        """The error itself, but for one of a fixed set of words: msgspec does not say which there are."""
        text = str(exc)
        if not text.startswith("Invalid enum value"):
            return exc
        path = text.partition(" - at `$")[2].rstrip("`").lstrip(".")
        words = _words(inspect.type_info(self._struct), path)
        return bad_value(path, f"must be {'one of ' * (len(words) > 1)}{', '.join(words)}") if words else exc


def _words(kind: Any, path: str) -> list[str]:
    """The words that may stand at `path`, as msgspec writes it: ``messages[0].role``."""
    kinds = [kind]
    for name in (*re.findall(r"\w+(?=[.\[]|$)|\[(?=\d)", path), None):
        kinds = [each for kind in kinds for each in (kind.types if isinstance(kind, inspect.UnionType) else (kind,))]
        if name is None:
            break
        if name == "[":
            kinds = [each.item_type for each in kinds if isinstance(each, inspect.ListType)]
        else:
            structs = [each for each in kinds if isinstance(each, inspect.StructType)]
            kinds = [field.type for each in structs for field in each.fields if field.encode_name == name]
    return [str(word) for each in kinds if isinstance(each, inspect.LiteralType) for word in each.values]


def plain(raw: msgspec.Raw, param: str) -> Any:
    """The value of a raw field. UserError that names it for a number or a text that there cannot be."""
    try:
        return msgspec.json.decode(raw)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as exc:
        raise UserError(f"{param}: {str(exc) or 'not valid JSON'}.", param=param, code="invalid_value") from None
