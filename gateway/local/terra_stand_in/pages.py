"""The HTML pages of the widget."""

from collections.abc import Sequence
from html import escape
from typing import Final

#: Wearables that a session offers by default.
PROVIDERS: Final = ("FITBIT", "GARMIN", "OURA", "WHOOP", "WITHINGS")

_PAGE: Final = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title} (Terra stand-in)</title>
<link rel="icon" href="data:,">
<style>
body {{ font: 1rem/1.6 system-ui, sans-serif; max-width: 32rem; margin: 4rem auto; }}
.note {{ background: #fff3cd; color: #222; padding: .5rem 1rem; border-radius: .5rem; }}
button {{ font: inherit; padding: .4rem 1rem; margin: .2rem; cursor: pointer; }}
</style>
</head>
<body>
<p class="note">This is a stand-in for Terra, on your machine. Nothing real is connected.</p>
<h1>{title}</h1>
{content}
</body>
</html>
"""


def choice(providers: Sequence[str], reference_id: str) -> bytes:
    """Return the page of a session."""
    buttons = "\n".join(
        f'<button name="provider" value="{escape(name)}">{escape(name.title())}</button>'
        for name in providers
    )
    cancel = '<p><button name="cancel" value="yes">Cancel</button></p>'
    intro = f"<p>Connect a wearable of <code>{escape(reference_id)}</code>:</p>"
    return _page("Connect a wearable", f'<form method="post">{intro}{buttons}{cancel}</form>')


def message(title: str, content: str) -> bytes:
    """Return a page with a message."""
    return _page(title, f"<p>{escape(content)}</p>")


def _page(title: str, content: str) -> bytes:
    return _PAGE.format(title=escape(title), content=content).encode()
