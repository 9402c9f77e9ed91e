"""The data dictionary: what analysts can read, in the words of the comments in Postgres.

`make dictionary` writes it into docs/data/README.md, below what is written there by hand.
"""

import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import psycopg

from headwater.projections.postgres.analysts import documented
from headwater.projections.postgres.embedded import EmbeddedPostgres
from headwater.projections.postgres.migrate import migrate
from headwater.projections.postgres.schemas import own_dsn
from headwater.projections.postgres.statements import statement

#: Where the part begins that is made.
MARK: Final = "<!-- From here on made by `make dictionary`, from the comments in Postgres. -->\n"


def dictionary(connection: psycopg.Connection) -> str:
    """The tables and views that are for analysts, with all their columns, as Markdown."""
    return "\n".join(line for name in documented(connection) for line in _section(connection, name))


def _section(connection: psycopg.Connection, name: str) -> Iterator[str]:
    found = connection.execute(statement("describe_table"), {"name": name}).fetchone()
    kind, comment = found or ("table", None)
    key = [column for (column,) in connection.execute(statement("export_key"), {"name": name})]
    yield f"## {name}\n"
    yield (comment or "").replace("|", "\\|")
    if kind == "view":
        yield "A view."
    if key:
        yield f"Key: `{'`, `'.join(key)}`."
    yield "\n| column | type | |\n| --- | --- | --- |"
    for column, type_, text in connection.execute(statement("describe_columns"), {"name": name}):
        yield f"| `{column}` | {type_} | {(text or '').replace('|', chr(92) + '|')} |"
    yield ""


def written(page: str, made: str) -> str:
    """A page whose part that is made is this."""
    return page.partition(MARK)[0] + MARK + "\n" + made.rstrip() + "\n"


def main() -> None:
    """Writes the page that is named, from a database made for the purpose."""
    page = Path(sys.argv[1])
    with tempfile.TemporaryDirectory() as folder:
        server = EmbeddedPostgres(Path(folder), report=lambda _: None)
        try:
            dsn = server.start()
            migrate(dsn, lambda _: None)
            with psycopg.connect(own_dsn(dsn)) as connection:
                made = dictionary(connection)
        finally:
            server.stop()
    page.write_text(written(page.read_text("utf-8"), made), "utf-8")


if __name__ == "__main__":
    main()
