"""The data dictionary: the tables for analysts, described by the comments in Postgres.

`make dictionary` writes it into docs/data/README.md, after the manually written part.
"""

import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import psycopg

from headwater.projections.postgres.connections import own_dsn
from headwater.projections.postgres.embedded import EmbeddedPostgres
from headwater.projections.postgres.migrate import migrate
from headwater.projections.postgres.roles import documented
from headwater.projections.postgres.statements import statement

#: Start of the generated part.
MARK: Final = "<!-- From here on made by `make dictionary`, from the comments in Postgres. -->\n"


def dictionary(connection: psycopg.Connection) -> str:
    """Return the tables and views for analysts, with all their columns, as Markdown."""
    return "\n".join(line for name in documented(connection) for line in _section(connection, name))


def _section(connection: psycopg.Connection, name: str) -> Iterator[str]:
    description = connection.execute(statement("describe_table"), {"name": name}).fetchone()
    kind, comment = description or ("table", None)
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


def written(page: str, generated: str) -> str:
    """Return a page with its generated part replaced."""
    return page.partition(MARK)[0] + MARK + "\n" + generated.rstrip() + "\n"


def main() -> None:
    """Write the named page, from a temporary database."""
    page = Path(sys.argv[1])
    with tempfile.TemporaryDirectory() as folder:
        server = EmbeddedPostgres(Path(folder), report=lambda _: None)
        try:
            dsn = server.start()
            migrate(dsn, lambda _: None)
            with psycopg.connect(own_dsn(dsn)) as connection:
                generated = dictionary(connection)
        finally:
            server.stop()
    page.write_text(written(page.read_text("utf-8"), generated), "utf-8")


if __name__ == "__main__":
    main()
