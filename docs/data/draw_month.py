"""Draw docs/data/month.svg with the notebook, from a month of generated data in real tables.

`make picture` runs it. The data are generated with a seed, so the picture does not change.
"""

import os
import subprocess
import tempfile
from datetime import UTC, date, datetime, time, timedelta
from pathlib import Path
from random import Random

import psycopg

from headwater.projections.postgres.embedded import EmbeddedPostgres
from headwater.projections.postgres.migrate import migrate

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOK = ROOT / "docs" / "data" / "month.py"
PYTHON = ROOT / ".venv-notebook" / "bin" / "python"
USER = "user_amara"
FIRST = date(2026, 7, 1)


def write_month(dsn: str, user: str = USER, days: int = 31) -> None:
    """Insert a month of a user, with more steps at weekends and four days of illness."""
    random = Random(20260701)  # noqa: S311 (no secret)
    rows = []
    for number in range(days):
        day = FIRST + timedelta(days=number)
        ill = 0 <= number - 17 < 4
        steps = random.gauss(13_000 if day.weekday() >= 5 else 8_500, 1_500) * (0.3 if ill else 1)
        asleep = random.gauss(455 if ill else 425, 25)
        deep, rem = asleep * random.gauss(0.18, 0.02), asleep * random.gauss(0.22, 0.02)
        rest = random.gauss(52, 1) + (8 if ill else 0)
        row = (round(steps), rest, random.gauss(68, 5) - (22 if ill else 0), deep, rem)
        rows.append((user, day, *row, asleep - deep - rem, datetime.combine(day, time(), UTC)))
    with psycopg.connect(dsn) as connection:
        connection.cursor().executemany(
            "insert into daily_summary (user_id, source, datetime, steps, resting_heart_rate,"
            " heart_rate_variability, deep_sleep_minutes, rem_sleep_minutes, light_sleep_minutes,"
            " updated_at, column_sources)"
            " values (%s, 'garmin', %s, %s, %s, %s, %s, %s, %s, %s, '{}')",
            rows,
        )


def draw(dsn: str, user: str, svg: Path) -> str:
    """Run the notebook as a script and return its output.

    Raises:
        RuntimeError: The notebook failed; the message is its output.
    """
    argv = [PYTHON, NOTEBOOK, "--", "--user", user, "--svg", svg]
    done = subprocess.run(  # noqa: S603 (a script of this repository)
        argv,
        env={**os.environ, "HEADWATER_POSTGRES": dsn},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(done.stdout)
    return done.stdout


def main() -> None:
    """Draw the picture from a temporary database."""
    with tempfile.TemporaryDirectory() as folder:
        server = EmbeddedPostgres(Path(folder), report=lambda _: None)
        try:
            dsn = server.start()
            migrate(dsn, lambda _: None)
            write_month(dsn)
            draw(dsn, USER, ROOT / "docs" / "data" / "month.svg")
        finally:
            server.stop()


if __name__ == "__main__":
    main()
