"""Entity tags in If-Match: preconditions of an operation."""

import re

from headwater.gateway.api.problems import Problem

_SHOWN_CHARS = 80


def tag_of(if_match: str | None, form: re.Pattern[str], expected: str) -> str:
    """Return the entity tag in the header If-Match.

    Args:
        if_match: The header's value.
        form: Valid values; its first group is the tag.
        expected: Description of valid values, for the error.

    Returns:
        The tag, or "" without a header.

    Raises:
        Problem: The value is not valid.
    """
    if if_match is None:
        return ""
    match = form.fullmatch(if_match.strip())
    if match is None:
        raise Problem(
            "invalid_parameter",
            f"If-Match: expected {expected}, found {if_match[:_SHOWN_CHARS]!r}",
            field="If-Match",
        )
    return match[1]
