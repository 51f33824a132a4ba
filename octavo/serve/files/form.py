"""A multipart form with one file, read as it comes: fields are bounded, the file goes where it is told."""

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from octavo.base.errors import UserError, missing

MAX_FIELDS = 16
MAX_FIELD_BYTES = 1024
MAX_HEADERS = 8
MAX_HEADER_BYTES = 2048


class FileForm:
    """Feed it the body; `take` gives the file's bytes since the last call."""

    def __init__(self, content_type: bytes) -> None:
        """UserError without a usable boundary."""
        _, options = parse_options_header(content_type)
        boundary = options.get(b"boundary", b"")
        if not 0 < len(boundary) <= 200:
            raise _bad("The multipart form has no boundary.")
        self.fields: dict[str, str] = {}
        self.filename: str | None = None
        self._file: list[bytes] = []
        self._value = bytearray()
        self._name = ""
        self._in_file = False
        self._header_name = bytearray()
        self._header_value = bytearray()
        self._headers: dict[bytes, bytes] = {}
        self._parts = 0
        self._ended = False
        self._parser = MultipartParser(
            boundary,
            {
                "on_part_begin": self._part_begin,
                "on_part_data": self._part_data,
                "on_part_end": self._part_end,
                "on_header_field": self._header_field,
                "on_header_value": self._header_content,
                "on_header_end": self._header_end,
                "on_headers_finished": self._headers_finished,
                "on_end": self._end,
            },
            max_header_count=MAX_HEADERS,
            max_header_size=MAX_HEADER_BYTES,
        )

    def feed(self, data: bytes) -> None:
        """More of the body. UserError when it is no form, or one of too many parts."""
        try:
            self._parser.write(data)
        except FormParserError:
            raise _bad("The multipart form is malformed.") from None

    def take(self) -> bytes:
        """The file's new bytes."""
        data, self._file = b"".join(self._file), []
        return data

    def close(self) -> None:
        """UserError when the form was cut short or has no file."""
        if not self._ended:
            raise _bad("The multipart form is cut short.")
        if self.filename is None:
            raise missing("file")

    def _part_begin(self) -> None:
        self._parts += 1
        if self._parts > MAX_FIELDS:
            raise _bad(f"The form has more than {MAX_FIELDS} parts.")
        self._headers = {}
        self._value.clear()

    def _header_field(self, data: bytes, start: int, end: int) -> None:
        self._header_name += data[start:end]

    def _header_content(self, data: bytes, start: int, end: int) -> None:
        self._header_value += data[start:end]

    def _header_end(self) -> None:
        self._headers[bytes(self._header_name).lower()] = bytes(self._header_value)
        self._header_name.clear()
        self._header_value.clear()

    def _headers_finished(self) -> None:
        _, options = parse_options_header(self._headers.get(b"content-disposition", b""))
        self._name = options.get(b"name", b"").decode("utf-8", "replace")[:64]
        if not self._name:
            raise _bad("A part of the form has no name.")
        self._in_file = b"filename" in options
        if self._in_file:
            if self.filename is not None:
                raise _bad("The form has more than one file.")
            if self._name != "file":
                raise _bad("The file must be in the part named file.")
            self.filename = options[b"filename"].decode("utf-8", "replace")

    def _part_data(self, data: bytes, start: int, end: int) -> None:
        if self._in_file:
            self._file.append(data[start:end])
            return
        self._value += data[start:end]
        if len(self._value) > MAX_FIELD_BYTES:
            raise _bad(f"A field of the form may have at most {MAX_FIELD_BYTES} bytes.")

    def _part_end(self) -> None:
        if not self._in_file:
            if self._name in self.fields:
                raise UserError(f"{self._name} is given twice.", param=self._name, code="invalid_form")
            self.fields[self._name] = self._value.decode("utf-8", "replace")

    def _end(self) -> None:
        self._ended = True


def _bad(message: str) -> UserError:
    return UserError(message, code="invalid_form")
