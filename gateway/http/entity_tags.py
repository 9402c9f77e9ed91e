"""Entity tags that callers name: what has to be there still, for something to be done."""

import re

from headwater.gateway.http.problems import Problem

_SHOWN_CHARS = 80


def tag_of(if_match: str | None, form: re.Pattern[str], expected: str) -> str:
    """What the header If-Match names, the first group of its form; "" for anything.

    Errors: Problem.
    """
    if if_match is None:
        return ""
    found = form.fullmatch(if_match.strip())
    if found is None:
        raise Problem(
            "invalid_parameter",
            f"If-Match: expected {expected}, found {if_match[:_SHOWN_CHARS]!r}",
            field="If-Match",
        )
    return found[1]
