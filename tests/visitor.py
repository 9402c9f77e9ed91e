"""Somebody with a browser: reads pages of the console, and presses the buttons that are there."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from html.parser import HTMLParser

import httpx2

from tests.waiting import ANSWERED_WITHIN_S


@dataclass
class Form:
    action: str
    method: str
    fields: dict[str, str] = field(default_factory=dict)
    labels: list[str] = field(default_factory=list)


class _Forms(HTMLParser):
    """The forms of a page, and all of its text."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.forms: list[Form] = []
        self.text = ""
        self._in_button = False
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        provided = {name: value or "" for name, value in attrs}
        self.text += " "
        if tag == "form":
            self.forms.append(Form(provided.get("action", ""), provided.get("method", "get")))
        elif tag in ("input", "textarea", "select") and provided.get("name"):
            self.forms[-1].fields[provided["name"]] = provided.get("value", "")
        elif tag == "button":
            self.forms[-1].labels.append("")
            self._in_button = True

    def handle_endtag(self, tag: str) -> None:
        self._in_button = self._in_button and tag != "button"

    def handle_data(self, data: str) -> None:
        self.text += data
        if self._in_button:
            self.forms[-1].labels[-1] += data


class Visitor:
    """Signed in, at the console of a gateway."""

    def __init__(self, client: httpx2.Client, key: str = "dev-admin-key") -> None:
        self.client = client
        self.press("/console", "Sign in", key=key)

    def page(self, path: str) -> str:
        """A page that is there."""
        answer = self.client.get(path)
        assert answer.status_code == 200, answer.text
        assert scripts(answer.text) == 1
        return answer.text

    def press(self, path: str, label: str, /, about: str = "", **typed: str) -> httpx2.Response:
        """Fills in the form of a page that has a button of this name, and sends it.

        Shape:  of several, the one whose address has what it is about.
        """
        page = self.client.get(path)
        result = [
            form for form in forms(page.text) if label in form.labels and about in form.action
        ]
        assert len(result) == 1, f"expected one button {label!r}, found {len(result)}: {page.text}"
        (form,) = result
        assert typed.keys() <= form.fields.keys(), form
        fields = form.fields | typed
        target = form.action or str(page.url)
        if form.method == "get":
            return self.client.get(target, params=fields)
        return self.client.post(target, data=fields)


@contextmanager
def visiting(url: str) -> Iterator[Visitor]:
    with httpx2.Client(base_url=url, follow_redirects=True, timeout=ANSWERED_WITHIN_S) as client:
        yield Visitor(client)


def scripts(page: str) -> int:
    """How many scripts a page has; the console's own is a file, and the first."""
    assert '<script src="/console/console.js?v=' in page
    return page.lower().count("<script")


def forms(page: str) -> list[Form]:
    """The forms of a page."""
    return _Forms(page).forms


def words(page: str) -> str:
    """The text of a page, as it is read."""
    return " ".join(_Forms(page).text.split())
