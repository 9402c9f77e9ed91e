"""Paths of what has a name or an id that comes from outside."""

from urllib.parse import quote


class NothingNamed(ValueError):
    """A name or an id that is empty."""


def path(*segments: str) -> str:
    """A path below the base URL.

    Errors: NothingNamed for an empty segment, which would lead elsewhere; TypeError for no text.
    """
    given: tuple[object, ...] = segments
    for each in given:
        if not isinstance(each, str):
            raise TypeError(
                f"expected the name or the id of what is asked for to be text, found {each!r:.80}"
            )
    if not all(segments):
        raise NothingNamed("expected the name or the id of what is asked for, found nothing")
    # A segment of dots alone would lead elsewhere, too.
    quoted = (quote(each, safe="@") for each in segments)
    return "/" + "/".join(q if q.strip(".") else q.replace(".", "%2E") for q in quoted)
