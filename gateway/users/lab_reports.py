"""Lab reports as forms bring them: read within limits, and looked at before anything is kept."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import PurePosixPath
from typing import Final, NamedTuple

from litestar.datastructures import Headers
from litestar.types import Receive
from multipart import MultipartError, MultipartSegment, PushMultipartParser, parse_options_header

from headwater.gateway.blobs.store import reports_of
from headwater.gateway.http.bodies import BodyReader
from headwater.gateway.http.budget import Hold
from headwater.gateway.http.problems import Problem

FILE_BYTES_MAX: Final = 10 * 1024 * 1024
#: What a form may have beside the file: boundaries, headers, other fields.
_FORM_BYTES_MAX: Final = 64 * 1024
BODY_BYTES_MAX: Final = FILE_BYTES_MAX + _FORM_BYTES_MAX
_FIELD: Final = "file"
_NAME_MAX: Final = 512
_HEADERS_MAX: Final = 16
_SEGMENTS_MAX: Final = 64

#: By content type: the extension that a report is kept under.
EXTENSIONS: Final = {"application/pdf": "pdf", "image/png": "png", "image/jpeg": "jpg"}
_TYPES: Final = {"pdf": "application/pdf", "png": "image/png", "jpg": "image/jpeg"} | {
    "jpeg": "image/jpeg"
}


class Report(NamedTuple):
    """A file as it was sent; the name is a text, and never a path of ours."""

    name: str
    content_type: str
    content: bytes

    @property
    def extension(self) -> str:
        """What its storage key ends with."""
        return EXTENSIONS[self.content_type]


async def read_report(headers: Headers, receive: Receive, reader: BodyReader, hold: Hold) -> Report:
    """Reads the form, no further than to where it is refused.

    Errors: Problem.
    """
    form = _Form(_boundary(headers.get("content-type", "")))
    length = headers.get("content-length", "")
    try:
        found = await reader.feed(
            receive, int(length) if length.isdecimal() else None, hold, form.take
        )
    except Problem:
        await reader.drain(receive, hold)
        raise
    if found is not None:
        await reader.drain(receive, hold)
        raise _too_large() if found.code == "body_too_large" else Problem(found.code, found.detail)
    return form.report()


def _boundary(content_type: str) -> str:
    kind, options = parse_options_header(content_type)
    boundary: str = options.get("boundary", "")
    if kind.lower() != "multipart/form-data" or not boundary:
        raise Problem(
            "expected_multipart",
            "content-type: expected multipart/form-data with a boundary, found "
            f"{content_type[:60]!r}",
            field="content-type",
        )
    return boundary


class _Form:
    """The file of a form, taken out of it as the form arrives. Nothing is kept of other fields."""

    def __init__(self, boundary: str) -> None:
        with _read_as_form():
            self._parser = PushMultipartParser(
                boundary, max_header_count=_HEADERS_MAX, max_segment_count=_SEGMENTS_MAX
            )
        self._name: str | None = None
        self._type = ""
        self._said: str | None = None
        self._content = bytearray()
        self._in_file = False

    def take(self, piece: bytes) -> None:
        """Takes the next piece of the form.

        Errors: Problem.
        """
        if not piece:
            return
        with _read_as_form():
            events = list(self._parser.parse(piece))
        for event in events:
            if isinstance(event, MultipartSegment):
                self._in_file = event.name == _FIELD and event.filename is not None
                if self._in_file:
                    self._begin(event)
            elif event is not None and self._in_file:
                self._content += event
                if len(self._content) > FILE_BYTES_MAX:
                    raise _too_large()

    def report(self) -> Report:
        """The file, once the form has ended.

        Errors: Problem.
        """
        with _read_as_form():
            self._parser.close()
        if self._name is None:
            raise _missing("a file, found none")
        if not self._content:
            raise _missing("a file, found an empty one")
        kind = self._type or _type_of(self._said, self._name)
        return Report(self._name, kind, bytes(self._content))

    def _begin(self, segment: MultipartSegment) -> None:
        if self._name is not None:
            raise Problem(
                "expected_multipart", f"{_FIELD}: expected it once, found it again", field=_FIELD
            )
        name = segment.filename or ""
        if len(name) > _NAME_MAX or "\0" in name:
            raise Problem(
                "invalid_body",
                f"{_FIELD}: expected a name of at most {_NAME_MAX} characters without NUL, found "
                f"{name[:60]!r}",
                field=_FIELD,
            )
        self._name, self._said = name, segment.content_type
        # Browsers send a nameless, empty part where nobody chose a file: its type says nothing.
        if name:
            self._type = _type_of(self._said, name)


@contextmanager
def _read_as_form() -> Iterator[None]:
    try:
        yield
    except (MultipartError, ValueError, LookupError) as error:
        raise Problem(
            "expected_multipart", f"expected a whole form of multipart/form-data, found: {error}"
        ) from error


def _type_of(content_type: str | None, name: str) -> str:
    """What a file is: what its type says, if that is one of ours, else what its name ends with."""
    media_type = (content_type or "").partition(";")[0].strip().lower()
    media_type = "image/jpeg" if media_type == "image/jpg" else media_type
    if media_type in EXTENSIONS:
        return media_type
    suffix = PurePosixPath(name).suffix[1:].lower()
    if suffix in _TYPES:
        return _TYPES[suffix]
    raise Problem(
        "unsupported_file_type",
        f"{_FIELD}: expected a PDF, PNG or JPEG by its type or the end of its name, found "
        f"{media_type[:60]!r} and {name[-60:]!r}",
        field=_FIELD,
    )


def _missing(expected: str) -> Problem:
    return Problem("missing_file_field", f"{_FIELD}: expected {expected}", field=_FIELD)


def _too_large() -> Problem:
    return Problem(
        "file_too_large",
        f"{_FIELD}: expected at most {FILE_BYTES_MAX} bytes, found more",
        field=_FIELD,
    )


def storage_key(user_id: str, upload_id: str, extension: str) -> str:
    """Where a report is kept."""
    return f"{reports_of(user_id)}{upload_id}.{extension}"
