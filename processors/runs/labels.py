"""Labels of instances: a few names with texts, set at creation, by which instances are queried."""

import re
from collections.abc import Mapping
from typing import Final

from headwater.schemas.history import Label

LABELS_MAX: Final = 16
LABEL_NAME_MAX: Final = 64
LABEL_VALUE_MAX: Final = 256

_NAME: Final = re.compile(r"[a-zA-Z0-9_][a-zA-Z0-9_.-]*")


def label_types_problem(labels: object) -> str | None:
    """Return why labels do not map text to text, or None if they do."""
    if not isinstance(labels, Mapping):
        return f"expected labels as a dict, found {labels!r:.120}"
    for name in labels:
        if not isinstance(name, str):
            return f"expected names of labels as text, found {name!r:.120}"
    return None


def labels_problem(labels: Mapping[str, object]) -> str | None:
    """Return what is wrong with labels, or None."""
    if len(labels) > LABELS_MAX:
        return f"expected at most {LABELS_MAX} labels, found {len(labels)}"
    for name, value in labels.items():
        if len(name) > LABEL_NAME_MAX or not _NAME.fullmatch(name):
            return (
                f"expected the name of a label of 1 to {LABEL_NAME_MAX} characters out of a-z, "
                f"A-Z, 0-9, _, - and ., not beginning with - or ., found {name[:120]!r}"
            )
        if not isinstance(value, str) or len(value) > LABEL_VALUE_MAX or "\0" in value:
            return (
                f"expected text of at most {LABEL_VALUE_MAX} characters without NUL as the label "
                f"{name}, found {value!r:.120}"
            )
    return None


def labels_of(labels: Mapping[str, str]) -> tuple[Label, ...]:
    """Return labels as commands and histories store them: sorted by name, so that they compare."""
    return tuple(Label(name, labels[name]) for name in sorted(labels))


def checked_labels(labels: Mapping[str, str] | None) -> tuple[Label, ...]:
    """Check and return the labels that an author passed.

    Raises:
        TypeError: They do not map text to text.
        ValueError: They violate the rules.
    """
    problem = label_types_problem(labels or {})
    if problem:
        raise TypeError(problem)
    problem = labels_problem(labels or {})
    if problem:
        raise ValueError(problem)
    return labels_of(labels or {})
