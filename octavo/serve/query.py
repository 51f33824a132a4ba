"""What stands beside a body: headers, and parameters in the URL, read strictly: bounded, once each, errors by name."""

from collections.abc import Sequence
from typing import Any
from urllib.parse import parse_qsl

from starlette.types import Scope

from octavo.base.errors import UserError, bad_value

MAX_PARAMETERS = 64
MAX_VALUE = 512


def header(scope: Scope, name: bytes) -> str | None:
    """The first header of this name."""
    return next((value.decode("latin-1") for own, value in scope["headers"] if own == name), None)


class Query:
    """The parameters of one request. Those that nobody asks for are passed over."""

    def __init__(self, scope: Scope, repeated: Sequence[str] = ()) -> None:
        """`repeated` may be given more than once. UserError for a malformed query."""
        try:
            pairs = parse_qsl(
                scope["query_string"].decode("ascii"), keep_blank_values=True, max_num_fields=MAX_PARAMETERS
            )
        except (ValueError, UnicodeDecodeError):
            raise UserError("The query of the URL is malformed.", code="bad_request") from None
        self._values: dict[str, str] = {}
        self._lists = {name: [value for key, value in pairs if key == name] for name in repeated}
        for name, value in pairs:
            if name in self._lists:
                continue
            if name in self._values and not name.endswith("[]"):
                raise UserError(f"{name[:40]} is given twice.", param=name[:40], code="invalid_value")
            self._values[name] = value

    def has(self, name: str) -> bool:
        """Whether it is there, be it without a value."""
        return name in self._values

    def text(self, name: str) -> str | None:
        """A string, or None."""
        value = self._values.get(name)
        if value is not None and (len(value) > MAX_VALUE or not value.isprintable()):
            raise bad_value(name, f"must be at most {MAX_VALUE} printable characters")
        return value or None

    def whole(self, name: str, low: int, high: int) -> int | None:
        """A whole number within bounds, or None."""
        value = self.text(name)
        if value is None:
            return None
        if not (value.isascii() and value.isdigit() and len(value) < 20 and low <= int(value) <= high):
            raise bad_value(name, f"must be a whole number between {low} and {high}")
        return int(value)

    def flag(self, name: str) -> bool:
        """true or false; false when it is not there."""
        return self.choice(name, ("true", "false", "1", "0")) in ("true", "1")

    def choice(self, name: str, allowed: Sequence[str]) -> str | None:
        """One of `allowed`, or None."""
        value = self.text(name)
        if value is not None and value not in allowed:
            raise bad_value(name, f"must be one of {', '.join(allowed)}")
        return value

    def choices(self, name: str, allowed: Sequence[str]) -> list[str]:
        """All values of a repeated parameter, each one of `allowed`; a value may be several with commas between."""
        values = [part for value in self._lists[name] for part in value.split(",") if part]
        if not set(values) <= set(allowed):
            raise bad_value(name, f"must be one of {', '.join(allowed)}")
        return values

    def page(self, rows: Sequence[dict[str, Any]], after: str | None, limit: int) -> dict[str, Any]:
        """OpenAI's list object of the rows that follow the one named `after`."""
        start = 0
        if after is not None:
            start = next((index for index, row in enumerate(rows, 1) if row["id"] == after), -1)
            if start < 0:
                raise bad_value("after", "names nothing in this list")
        return listing(list(rows[start : start + limit]), more=len(rows) > start + limit)


def listing(rows: Sequence[dict[str, Any]], *, more: bool) -> dict[str, Any]:
    """OpenAI's list object."""
    return {
        "object": "list",
        "data": rows,
        "first_id": rows[0]["id"] if rows else None,
        "last_id": rows[-1]["id"] if rows else None,
        "has_more": more,
    }
