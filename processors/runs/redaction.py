"""Redaction of histories: values of sensitive fields are replaced, wherever they occur.

A rule is a pattern for names of fields, such as `*email*`. Texts of matching fields are replaced by
pseudonyms: equal texts by equal ones, so that a replay compares them as before. The same texts,
unless they are short, are also replaced in fields of other names, and within other texts. A text
that is a JSON object or array is redacted like one. Numbers of matching fields become 0. Log lines,
which no replay needs, are emptied.
"""

import json
from collections.abc import Sequence
from fnmatch import fnmatchcase
from functools import lru_cache
from hashlib import blake2b
from typing import Any, Final

import msgspec

from headwater.processors.input_texts import JsonInvalid, read_json
from headwater.processors.runs.history_files import Rewriter, RunHistory, document_of
from headwater.schemas.history import HistoryAppended, LogWritten

#: Fields that are redacted unless a setting names others.
REDACTED_FIELDS: Final = (
    "*password*,*passwd*,*secret*,*api_key*,*apikey*,*access_token*,*refresh_token*,authorization,"
    "cookie,*email*,*phone*,*iban*,*card_number*,*ssn*,*birth*"
)
#: Shortest text that is replaced in other fields: shorter ones occur there by chance.
_WITHIN_MIN: Final = 6
_DIGEST_BYTES: Final = 6


def patterns_of(rules: str) -> tuple[str, ...]:
    """Return the patterns of a setting, in lower case."""
    return tuple(part.strip().lower() for part in rules.split(",") if part.strip())


class Redaction:
    """Replaces sensitive values of one history.

    Args:
        patterns: Patterns of the names of fields, in lower case.
        salt: Random text, so that pseudonyms cannot be computed from guessed values.
    """

    def __init__(self, patterns: Sequence[str], salt: str) -> None:
        self._patterns = tuple(patterns)
        self._salt = salt.encode()
        self._texts: dict[str, str] = {}
        self._count = 0
        self._matches = lru_cache(maxsize=4_096)(self._is_sensitive)

    def redact(self, history: RunHistory) -> RunHistory:
        """Return a history without sensitive values, and the number of those."""
        if not self._patterns:
            return history
        collect = Rewriter(payload=self._collect)
        for record in history.records:
            document_of(record, collect)
        # The longest first: one may contain another.
        self._texts = dict(sorted(self._texts.items(), key=lambda item: -len(item[0])))
        replace = Rewriter(payload=self._replace, text=self._replace_text)
        records = tuple(replace.record(_without_lines(record)) for record in history.records)
        return msgspec.structs.replace(history, records=records, redacted=self._count)

    def _is_sensitive(self, name: str) -> bool:
        lowered = name.lower()
        return any(fnmatchcase(lowered, pattern) for pattern in self._patterns)

    def _collect(self, value: Any, *, sensitive: bool = False) -> Any:  # noqa: ANN401, any JSON
        match value:
            case dict():
                for name, part in value.items():
                    self._collect(part, sensitive=sensitive or self._matches(name))
            case list():
                for part in value:
                    self._collect(part, sensitive=sensitive)
            case str() if sensitive and value:
                if value not in self._texts:
                    self._texts[value] = self._pseudonym(value)
            case str():
                self._collect(_json_in(value))
            case _:
                pass
        return value

    def _pseudonym(self, text: str) -> str:
        digest = blake2b(
            text.encode("utf-8", "surrogatepass"), digest_size=_DIGEST_BYTES, key=self._salt
        )
        return f"redacted-{digest.hexdigest()}"

    def _replace(self, value: Any, *, sensitive: bool = False) -> Any:  # noqa: ANN401, any JSON
        match value:
            case dict():
                return {
                    # Customers by email, for example: a name may be a sensitive text, too.
                    self._replace_text(name): self._replace(
                        part, sensitive=sensitive or self._matches(name)
                    )
                    for name, part in value.items()
                }
            case list():
                return [self._replace(part, sensitive=sensitive) for part in value]
            case str() if sensitive and value:
                self._count += 1
                return self._texts[value]
            case str():
                return self._replace_json(value) or self._replace_text(value)
            case int() | float() if sensitive and not isinstance(value, bool):
                self._count += 1
                return 0
            case _:
                return value

    def _replace_json(self, text: str) -> str | None:
        """Return the JSON that a text is without sensitive values; None if it has none."""
        value, before = _json_in(text), self._count
        replaced = None if value is None else self._replace(value)
        if self._count == before:
            return None
        compact = ": " not in text
        separators = (",", ":") if compact else (", ", ": ")
        return json.dumps(replaced, ensure_ascii=False, separators=separators)

    def _replace_text(self, text: str) -> str:
        for sensitive, other in self._texts.items():
            if len(sensitive) >= _WITHIN_MIN and sensitive in text:
                self._count += 1
                text = text.replace(sensitive, other)
        return text


def _json_in(text: str) -> dict[str, Any] | list[Any] | None:
    """Return the JSON object or array that a text is; None for any other text."""
    if not text.lstrip().startswith(("{", "[")):
        return None
    try:
        value: dict[str, Any] | list[Any] = read_json(text)
    except JsonInvalid:
        return None
    return value


def _without_lines(record: HistoryAppended) -> HistoryAppended:
    """Return a record without the texts of log lines. Their number stays."""
    events = tuple(
        msgspec.structs.replace(event, message="", data=None)
        if isinstance(event, LogWritten)
        else event
        for event in record.events
    )
    return msgspec.structs.replace(record, events=events)
