"""Accept uploaded lab reports within limits: uploads in an hour, size and type of a file."""

from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import ceil
from pathlib import PurePosixPath
from typing import Final, NamedTuple

from litestar.datastructures import Headers
from litestar.types import Receive

# Mypy sees python-multipart, a package of the same name that forwards to this one.
from multipart import (  # type: ignore[attr-defined]
    MultipartError,
    MultipartSegment,
    PushMultipartParser,
    parse_options_header,
)

from headwater.gateway.api.body_limits import BodyReader, Hold
from headwater.gateway.api.problems import Problem
from headwater.gateway.builtin.blobs.store import reports_of

_HOUR_S: Final = 3_600.0
#: Users in memory; one takes about 200 bytes. A user without uploads for an hour starts over.
_USERS_MAX: Final = 100_000


class _Used:
    """Usage of a user at a point in time; it drains to zero within an hour."""

    __slots__ = ("at_s", "bytes", "files")

    def __init__(self, at_s: float) -> None:
        self.at_s = at_s
        self.files = 0.0
        self.bytes = 0.0


class UploadLimits:
    """Counts the uploads of users in this process.

    Args:
        files: Files of a user in an hour.
        max_bytes: Bytes of a user's files in an hour.
        clock_s: Returns seconds.
    """

    def __init__(self, files: int, max_bytes: int, clock_s: Callable[[], float]) -> None:
        self._files = files
        self._max_bytes = max_bytes
        self._clock_s = clock_s
        self._users: OrderedDict[str, _Used] = OrderedDict()

    @property
    def remembered(self) -> int:
        """Number of users in memory."""
        return len(self._users)

    def begin(self, user_id: str) -> None:
        """Count a file at the beginning of its upload.

        Raises:
            Problem: The user has uploaded too much; it states when to try again.
        """
        used = self._used(user_id)
        wait_s = max(
            (used.files + 1 - self._files) * _HOUR_S / self._files,
            (used.bytes + 1 - self._max_bytes) * _HOUR_S / self._max_bytes,
        )
        if wait_s > 0:
            seconds = ceil(wait_s)
            raise Problem(
                "too_many_requests",
                f"A user may upload {self._files} files and {self._max_bytes:,} bytes within an "
                f"hour; try again in {seconds} s.",
                headers={"retry-after": str(seconds)},
            )
        used.files += 1

    def add_bytes(self, user_id: str, size: int) -> None:
        """Count the bytes of an uploaded file."""
        self._used(user_id).bytes += size

    def _used(self, user_id: str) -> _Used:
        now_s = self._clock_s()
        used = self._users.pop(user_id, None) or _Used(now_s)
        # If the clock is set back, the usage does not change.
        drained = min(1.0, max(0.0, now_s - used.at_s) / _HOUR_S)
        used.files = max(0.0, used.files - drained * self._files)
        used.bytes = max(0.0, used.bytes - drained * self._max_bytes)
        used.at_s = now_s
        self._users[user_id] = used
        if len(self._users) > _USERS_MAX:
            self._users.popitem(last=False)
        return used


# -- files

FILE_BYTES_MAX: Final = 10 * 1024 * 1024
#: Bytes of a form in addition to the file: boundaries, headers, other fields.
_FORM_BYTES_MAX: Final = 64 * 1024
BODY_BYTES_MAX: Final = FILE_BYTES_MAX + _FORM_BYTES_MAX
_FIELD: Final = "file"
_NAME_MAX: Final = 512
_HEADERS_MAX: Final = 16
_SEGMENTS_MAX: Final = 64

#: Extension of the storage key by content type.
EXTENSIONS: Final = {"application/pdf": "pdf", "image/png": "png", "image/jpeg": "jpg"}
_TYPES: Final = {"pdf": "application/pdf", "png": "image/png", "jpg": "image/jpeg"} | {
    "jpeg": "image/jpeg"
}


class Report(NamedTuple):
    """An uploaded file. The name is informative only and never used as a path."""

    name: str
    content_type: str
    content: bytes

    @property
    def extension(self) -> str:
        """Extension of the storage key."""
        return EXTENSIONS[self.content_type]


async def read_report(headers: Headers, receive: Receive, reader: BodyReader, hold: Hold) -> Report:
    """Read a form and return its file; stop reading as soon as it is invalid.

    Raises:
        Problem: The form or its file is not valid.
    """
    form = _Form(_boundary(headers.get("content-type", "")))
    length = headers.get("content-length", "")
    try:
        refusal = await reader.feed(
            receive, int(length) if length.isdecimal() else None, hold, form.take
        )
    except Problem:
        await reader.drain(receive, hold)
        raise
    if refusal is not None:
        await reader.drain(receive, hold)
        raise (
            _too_large()
            if refusal.code == "body_too_large"
            else Problem(refusal.code, refusal.detail)
        )
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
    """Parses the file out of a form while the form arrives; discards other fields."""

    def __init__(self, boundary: str) -> None:
        with _read_as_form():
            self._parser = PushMultipartParser(
                boundary, max_header_count=_HEADERS_MAX, max_segment_count=_SEGMENTS_MAX
            )
        self._name: str | None = None
        self._type = ""
        self._declared: str | None = None
        self._content = bytearray()
        self._in_file = False

    def take(self, piece: bytes) -> None:
        """Parse the next piece of the form.

        Raises:
            Problem: The form or its file is not valid.
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
        """Return the file after the last piece.

        Raises:
            Problem: The form is incomplete, or has no file.
        """
        with _read_as_form():
            self._parser.close()
        if self._name is None:
            raise _missing("a file, found none")
        if not self._content:
            raise _missing("a file, found an empty one")
        kind = self._type or _type_of(self._declared, self._name)
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
        self._name, self._declared = name, segment.content_type
        # Browsers send an empty part without a name if no file was chosen; its type is meaningless.
        if name:
            self._type = _type_of(self._declared, name)


@contextmanager
def _read_as_form() -> Iterator[None]:
    try:
        yield
    except (MultipartError, ValueError, LookupError) as error:
        raise Problem(
            "expected_multipart", f"expected a complete multipart/form-data form, found: {error}"
        ) from error


def _type_of(content_type: str | None, name: str) -> str:
    """Return the type of a file: its content type if supported, else that of its extension."""
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
    """Return the storage key of a report."""
    return f"{reports_of(user_id)}{upload_id}.{extension}"
