import time
from typing import Annotated, Any, Literal

import msgspec
import pytest
from msgspec import Meta, Struct

from octavo.base.config import LimitsConfig
from octavo.base.errors import UserError
from octavo.serve.decode import Schema, check_shape
from octavo.serve.errors import failure

LIMITS = LimitsConfig()
MAX_DEPTH = LIMITS.max_json_depth


class Inner(Struct):
    role: str
    kind: Literal["one", "two"] | None = None


class Body(Struct, kw_only=True):
    n: Annotated[int, Meta(ge=-5, le=5)] | None = None
    t: float | None = None
    items: list[Inner] | None = None
    bias: dict[str, float] | None = None
    any: Any = None
    side: Literal["left"] = "left"
    need: str


SCHEMA = Schema(Body, silent=frozenset({"user"}))


def fail_of(body: bytes) -> tuple[int, str | None, str | None]:
    with pytest.raises((UserError, msgspec.DecodeError)) as caught:
        SCHEMA.decode(body)
    fail = failure(caught.value)
    assert len(fail.error.message) <= 400
    return fail.status, fail.error.param, fail.error.code


@pytest.mark.parametrize(
    ("body", "param", "code"),
    [
        (b"", None, "invalid_json"),
        (b"[]", None, "invalid_value"),
        (b'"x"', None, "invalid_value"),
        (b"null", None, "invalid_value"),
        (b"{'need': 1}", None, "invalid_json"),
        (b'{"need":"a"} x', None, "invalid_json"),
        (b'{"need":"a","t":NaN}', None, "invalid_json"),
        (b'{"need":"a","t":Infinity}', None, "invalid_json"),
        (b'{"need":"a","t":-Infinity}', None, "invalid_json"),
        (b'{"need":"a","t":1e400}', "t", "invalid_value"),
        (b'{"need":"a","any":1e400}', "any", "invalid_value"),
        (b'{"need":"a","n":1E+0}', "n", "invalid_value"),
        (b'{"need":"a","n":1.5}', "n", "invalid_value"),
        (b'{"need":"a","n":true}', "n", "invalid_value"),
        (b'{"need":"a","n":"1"}', "n", "invalid_value"),
        (b'{"need":"a","n":6}', "n", "invalid_value"),
        (b'{"need":"a","n":99999999999999999999999}', "n", "invalid_value"),
        (b'{"need":"a","t":"0.5"}', "t", "invalid_value"),
        (b'{"need":"a","items":{}}', "items", "invalid_value"),
        (b'{"need":"a","items":[{"role":"u"},{"role":3}]}', "items[1].role", "invalid_value"),
        (b'{"need":"a","items":[{}]}', "items[0].role", "missing_required_parameter"),
        (b'{"need":"a","bias":{"1":"x"}}', "bias", "invalid_value"),
        (b"{}", "need", "missing_required_parameter"),
        (b'{"need":null}', "need", "invalid_value"),
        (b'{"need":"\xff"}', None, "invalid_json"),
        (b'{"need":"\\ud800"}', None, "invalid_json"),
        (b'{"need":"a\nb"}', None, "invalid_json"),
        (b"\xef\xbb\xbf{}", None, "invalid_json"),
        (b'{"\xff\xfe":1,"need":"a"}', None, "invalid_json"),
    ],
)
def test_refusals_name_the_field(body: bytes, param: str | None, code: str) -> None:
    assert fail_of(body) == (400, param, code)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ('"side":"right"', "side must be left."),
        ('"items":[{"role":"a"},{"role":"a","kind":"x"}]', "items[1].kind must be one of one, two."),
        ('"items":[{"role":"a","kind":1}]', "items[0].kind: Expected str | null, got int."),
    ],
)
def test_a_word_of_a_fixed_set_is_told_the_others(fields: str, message: str) -> None:
    with pytest.raises((UserError, msgspec.DecodeError)) as caught:
        SCHEMA.decode(f'{{"need":"a",{fields}}}'.encode())
    assert failure(caught.value).error.message == message


def test_known_silent_and_unknown_fields() -> None:
    body, unknown = SCHEMA.decode(b'{"need":"a","user":"me","extra":[1,2],"t":-0}')
    assert body.need == "a"
    assert body.t == 0.0
    assert {name: bytes(raw) for name, raw in unknown.items()} == {"extra": b"[1,2]"}


def test_last_of_a_repeated_key_counts() -> None:
    body, _ = SCHEMA.decode(b'{"need":"a","n":1,"need":"b"}')
    assert body.need == "b"


def test_too_many_fields() -> None:
    fields = ",".join(f'"k{index}":1' for index in range(300))
    assert fail_of(b'{"need":"a",' + fields.encode() + b"}") == (400, None, "invalid_json")


@pytest.mark.parametrize(
    "body",
    [
        b"[" * 100_000,
        b'{"a":' * 100_000,
        b"[" * 100_000 + b"]" * 100_000,
        b'{"need":"a","any":' + b"[" * (MAX_DEPTH + 1) + b"]" * (MAX_DEPTH + 1) + b"}",
        b"[{" * 5000,
        b'{"need":"a","any":[' + b"[]," * 500_000 + b"1]}",
        b'{"need":"a","any":[' + b'"x",' * 500_000 + b"1]}",
        b'{"need":"a","any":{' + b",".join(b'"%d":1' % index for index in range(200_000)) + b"}}",
    ],
)
def test_deep_nesting_is_refused_quickly(body: bytes) -> None:
    start = time.process_time()
    assert fail_of(body)[0] == 400
    assert time.process_time() - start < 0.5


def test_flat_but_large_passes() -> None:
    check_shape(b"[" + b"[],{}," * 10_000 + b"[]]", LIMITS)
    text = msgspec.json.encode({"need": "[" * 1000 + '"\\' + "{" * 1000})
    assert SCHEMA.decode(text)[0].need.startswith("[")


def test_quotes_in_text_are_not_counted_as_strings() -> None:
    text = msgspec.json.encode({"need": '"' * 500_000, "any": [1] * 500_000})
    assert len(SCHEMA.decode(text)[0].need) == 500_000


def test_depth_at_the_limit_passes() -> None:
    body = b'{"need":"a","any":' + b"[" * (MAX_DEPTH - 1) + b"]" * (MAX_DEPTH - 1) + b"}"
    assert SCHEMA.decode(body)[0].need == "a"


@pytest.mark.parametrize("keys", [10_000, 10_001])
def test_keys_are_counted_over_all_objects_and_not_in_text(keys: int) -> None:
    objects = [{"a": 1, ':"b":': '\\":{\\'}] * ((keys - 2) // 2) + [{"c": 1}] * ((keys - 2) % 2)
    body = msgspec.json.encode({"need": "x:" * 20_000 + '"' * 30_000, "any": objects})
    if keys <= LIMITS.max_json_keys:
        assert len(SCHEMA.decode(body)[0].any) == len(objects)
    else:
        assert fail_of(body) == (400, None, "invalid_json")


def test_an_operator_sets_depth_and_keys() -> None:
    deep = b'{"need":"a","any":' + b"[" * 20 + b"]" * 20 + b"}"
    SCHEMA.decode(deep)
    with pytest.raises(UserError, match="deeper than 8"):
        SCHEMA.decode(deep, LimitsConfig(max_json_depth=8))
    many = msgspec.json.encode({"need": "a", "any": {str(index): "" for index in range(100)}})
    SCHEMA.decode(many)
    with pytest.raises(UserError, match="more than 64 keys"):
        SCHEMA.decode(many, LimitsConfig(max_json_keys=64))
