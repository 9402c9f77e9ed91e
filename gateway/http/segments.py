"""Segments of a path, which may hold a slash: ids come from outside.

`/admin/user/a%2Fb` is about the user `a/b`. Servers hand on a path that is decoded whole, in which
that slash is one between segments. So a path is split as it was sent, and then decoded.
"""

from typing import Final, cast
from urllib.parse import unquote

from litestar.types import ASGIApp, Receive, Scope, Send

#: Stands for a slash within a segment while Litestar splits the path. Half a character: no decoded
#: path has one.
_SLASH: Final = "\udc2f"
_ESCAPED: Final = "%2F"


def split_as_sent(scope: Scope) -> Scope:
    """The scope, with a path whose segments are those that were sent."""
    if b"%2" not in scope["raw_path"]:
        return scope
    path = "/".join(part.replace("/", _SLASH) for part in sent_segments(scope))
    return cast("Scope", {**scope, "path": path})


def sent_segments(scope: Scope) -> list[str]:
    """The segments of a path as they were sent, decoded."""
    sent = scope["raw_path"].partition(b"?")[0].decode("latin-1")
    return [unquote(part) for part in sent.split("/")]


def whole_parameters(app: ASGIApp) -> ASGIApp:
    """Gives handlers the parameters of a path as they are meant; a middleware."""

    async def restored(scope: Scope, receive: Receive, send: Send) -> None:
        if _SLASH in scope["path"]:
            # Litestar keeps what it found, so the mapping is not ours to change. Some are numbers.
            found = cast("dict[str, object]", scope["path_params"])
            whole = {name: meant(v) if isinstance(v, str) else v for name, v in found.items()}
            scope["path_params"] = cast("dict[str, str]", whole)
        await app(scope, receive, send)

    return restored


def meant(segment: str) -> str:
    """A segment of a scope's path, as it is meant."""
    return segment.replace(_SLASH, "/")


def shown(path: str) -> str:
    """The path of a scope, as it may be written anywhere."""
    return path.replace(_SLASH, _ESCAPED)
