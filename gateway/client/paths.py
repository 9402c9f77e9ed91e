"""URL paths with segments that come from outside."""

from urllib.parse import quote


class EmptyName(ValueError):
    """A name or an id is empty."""


def path(*segments: str) -> str:
    """Return a path below the base URL.

    Raises:
        EmptyName: A segment is empty, and the path would be another one.
        TypeError: A segment is no text.
    """
    untyped: tuple[object, ...] = segments
    for segment in untyped:
        if not isinstance(segment, str):
            raise TypeError(f"expected names and ids to be text, found {segment!r:.80}")
    if not all(segments):
        raise EmptyName("expected a name or an id, found nothing")
    # A segment of only dots would be another path, too.
    quoted = (quote(segment, safe="@") for segment in segments)
    return "/" + "/".join(q if q.strip(".") else q.replace(".", "%2E") for q in quoted)
