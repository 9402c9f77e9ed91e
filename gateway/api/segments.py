"""Path segments that contain an escaped slash, because external ids may contain one.

`/admin/user/a%2Fb` is about the user `a/b`. Servers decode the whole path, so that this slash looks
like a separator. So the raw path is split first, and then decoded.
"""

from typing import Final, cast
from urllib.parse import unquote

from litestar.types import ASGIApp, Receive, Scope, Send

#: Represents a slash within a segment while Litestar splits the path. It is a lone surrogate, which
#: no decoded path contains.
_SLASH: Final = "\udc2f"
_ESCAPED: Final = "%2F"


def split_as_sent(scope: Scope) -> Scope:
    """Return the scope with a path whose segments are those of the raw path."""
    if b"%2" not in scope["raw_path"]:
        return scope
    path = "/".join(part.replace("/", _SLASH) for part in sent_segments(scope))
    return cast("Scope", {**scope, "path": path})


def sent_segments(scope: Scope) -> list[str]:
    """Return the segments of the raw path, decoded."""
    sent = scope["raw_path"].partition(b"?")[0].decode("latin-1")
    return [unquote(part) for part in sent.split("/")]


def whole_parameters(app: ASGIApp) -> ASGIApp:
    """Middleware that restores slashes in path parameters for handlers."""

    async def restored(scope: Scope, receive: Receive, send: Send) -> None:
        if _SLASH in scope["path"]:
            # Litestar caches this mapping, so it is copied. Some parameters are numbers.
            params = cast("dict[str, object]", scope["path_params"])
            decoded = {
                name: decode_segment(value) if isinstance(value, str) else value
                for name, value in params.items()
            }
            scope["path_params"] = cast("dict[str, str]", decoded)
        await app(scope, receive, send)

    return restored


def decode_segment(segment: str) -> str:
    """Restore the slashes in a segment of a scope's path."""
    return segment.replace(_SLASH, "/")


def displayable_path(path: str) -> str:
    """Return the path of a scope with escaped slashes, for logs and responses."""
    return path.replace(_SLASH, _ESCAPED)
