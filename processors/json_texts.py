"""How deep a JSON text is, which decides whether it is read.

Parsers give up at some depth, each at another, and the same one at another in the next release of
Python. What is decided of a text must not depend on that, so its levels are counted first.
"""

import re
from itertools import accumulate
from typing import Final

from headwater.schemas.history import NESTING_MAX, Json

#: One that does not end counts, too, and goes up to the end of the text: otherwise the rest would
#: be looked through from each of its quotes on.
_STRINGS: Final = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+"?+', re.DOTALL)
_NO_BRACKETS: Final = re.compile(r"[^][{}]++")
_STEP: Final = {"[": 1, "{": 1, "]": -1, "}": -1}


class TooDeep(ValueError):
    """A text has more levels of lists and objects than are read."""


def within_levels(text: Json) -> Json:
    """The same text, if it has at most `NESTING_MAX` levels of lists and objects.

    Errors: TooDeep.
    """
    if text.count("[") + text.count("{") > NESTING_MAX and _levels(text) > NESTING_MAX:
        raise TooDeep(f"expected at most {NESTING_MAX} levels of lists and objects, found more")
    return text


def _levels(text: Json) -> int:
    brackets = _NO_BRACKETS.sub("", _STRINGS.sub("", text))
    return max(accumulate(map(_STEP.__getitem__, brackets)), default=0)
