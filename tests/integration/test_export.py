"""`headwater export`: what is in Postgres is in the file, with its types, in bounded memory."""

import csv
import io
import json
import subprocess
import sys
from datetime import UTC, date, datetime
from pathlib import Path

import psycopg
import pyarrow.parquet
import pytest
from click.testing import CliRunner, Result

from headwater.gateway.cli.export import export
from headwater.projections.errors import ExportRefused

AT = datetime(2026, 7, 1, 22, 30, tzinfo=UTC)
AWKWARD = 'a "night", of\r\ntwo lines'


@pytest.fixture(scope="module")
def database(module_migrated: str) -> str:
    with psycopg.connect(module_migrated) as connection:
        connection.cursor().executemany(
            "insert into daily_summary (user_id, source, datetime, steps, strain, bed_time,"
            " column_sources, updated_at) values (%s, %s, %s, %s, %s, %s, '{}', %s)",
            [
                ("user_bo", "whoop", date(2026, 7, 2), None, 11.25, None, AT.replace(day=3)),
                ("user_amara", "garmin", date(2026, 7, 1), 9007199254740993, None, AT, AT),
            ],
        )
        connection.execute(
            "insert into sleep_sessions (user_id, source, start_time, is_nap, raw, column_sources,"
            " updated_at) values (%s, 'garmin', %s, true, %s, '{}', %s)",
            (AWKWARD, AT, '{"a":  1.50,\n"b": "\\n"}', AT),
        )
    return module_migrated


def run(dsn: str, table: str, form: str, *more: str) -> Result:
    return CliRunner().invoke(
        export, [table, "--format", form, "--postgres", dsn, *more], catch_exceptions=False
    )


def test_csv_tells_null_from_the_empty_text_and_quotes_what_it_must(database: str):
    result = run(database, "sleep_sessions", "csv").stdout_bytes.decode()
    assert result.endswith("\r\n")
    (row,) = csv.DictReader(io.StringIO(result, newline=""))
    assert row["user_id"] == AWKWARD
    assert (row["start_time"], row["end_time"]) == ("2026-07-01T22:30:00Z", "")
    assert (row["is_nap"], row["raw"]) == ("true", '{"a":  1.50,\n"b": "\\n"}')
    assert "changed_in" not in row


def test_ndjson_is_a_line_a_row_in_the_order_of_the_key(database: str):
    lines = run(database, "daily_summary", "ndjson").stdout.splitlines()
    first, second = map(json.loads, lines)
    assert (first["user_id"], second["user_id"]) == ("user_amara", "user_bo")
    assert (first["datetime"], first["steps"]) == ("2026-07-01", 9007199254740993)
    assert (second["steps"], second["strain"]) == (None, 11.25)


def test_json_is_nested_in_ndjson_byte_for_byte_but_for_line_ends(database: str):
    (line,) = run(database, "sleep_sessions", "ndjson").stdout.splitlines()
    assert '"raw":{"a":  1.50, "b": "\\n"}' in line
    assert json.loads(line)["raw"] == {"a": 1.5, "b": "\n"}


def test_parquet_has_the_types_of_the_columns(database: str, tmp_path: Path):
    file = tmp_path / "days.parquet"
    assert (
        "2 rows of daily_summary"
        in run(database, "daily_summary", "parquet", "-o", str(file)).stderr
    )
    table = pyarrow.parquet.read_table(file)
    types = {field.name: str(field.type) for field in table.schema}
    assert types["datetime"] == "date32[day]"
    assert types["bed_time"] == "timestamp[us, tz=UTC]"
    assert (types["steps"], types["strain"], types["user_id"]) == ("int64", "double", "string")
    assert table.column("steps").to_pylist() == [9007199254740993, None]
    assert table.column("bed_time").to_pylist() == [AT, None]
    assert list(tmp_path.iterdir()) == [file]


def test_an_empty_table_is_a_file_with_its_columns(database: str, tmp_path: Path):
    file = tmp_path / "pushes.parquet"
    run(database, "pushes", "parquet", "-o", str(file))
    assert "repository" in pyarrow.parquet.read_schema(file).names
    assert run(database, "pushes", "csv").stdout.startswith("repository_id,ref,after,")
    assert not run(database, "pushes", "ndjson").stdout


def test_rows_of_one_user_and_rows_since_then(database: str):
    def users(*more: str) -> list[str]:
        lines = run(database, "daily_summary", "ndjson", *more).stdout.splitlines()
        return [json.loads(line)["user_id"] for line in lines]

    assert users("--user", "user_bo") == ["user_bo"]
    assert users("--since", "2026-07-02T01:00:00+02:00") == ["user_bo"]
    assert users("--user", "user_amara", "--since", "2026-07-02T00:00:00Z") == []
    assert users("--user", "' or true --") == []


def test_a_view_is_exported_too(database: str):
    assert run(database, "deliveries", "csv").stdout.startswith("received_at,")


@pytest.mark.parametrize(
    ("table", "more", "fault"),
    [
        ("daily", (), "found 'daily'"),
        ("daily_summary; drop table users", (), "one of .*daily_summary"),
        ("pg_authid", (), "expected a table or view that may be read"),
        ("deliveries", ("--since", "2026-07-01T00:00:00Z"), "--since: .* column updated_at"),
    ],
)
def test_what_cannot_be_exported_is_said(
    database: str, table: str, more: tuple[str, ...], fault: str
):
    with pytest.raises(ExportRefused, match=fault):
        run(database, table, "csv", *more)


def test_since_has_an_offset(database: str):
    result = run(database, "daily_summary", "csv", "--since", "2026-07-01")
    assert result.exit_code == 2
    assert "RFC 3339 with an offset" in result.stderr


def test_a_program_is_told_as_json_what_was_written(database: str, tmp_path: Path):
    file = tmp_path / "nights.ndjson"
    result = run(database, "sleep_sessions", "ndjson", "--json", "-o", str(file))
    assert json.loads(result.stdout) == {
        "table": "sleep_sessions",
        "format": "ndjson",
        "output": str(file),
        "rows": 1,
    }
    assert len(file.read_text("utf-8").splitlines()) == 1
    without_file = run(database, "sleep_sessions", "ndjson", "--json")
    assert (without_file.exit_code, without_file.stdout) == (2, "")
    assert "--json: expected --output" in without_file.stderr


def test_a_refused_export_leaves_the_older_file_alone(database: str, tmp_path: Path):
    file = tmp_path / "days.csv"
    file.write_text("older", "utf-8")
    with pytest.raises(ExportRefused):
        run(database, "nothing", "csv", "-o", str(file))
    assert [path.read_text("utf-8") for path in tmp_path.iterdir()] == ["older"]


def test_parquet_without_its_package_names_the_remedy(
    database: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    result = run(database, "pushes", "parquet", "-o", "unwritten.parquet")
    assert result.exit_code == 1
    assert "pip install 'headwater[parquet]'" in result.stderr
    assert not Path("unwritten.parquet").exists()


@pytest.mark.skipif(sys.platform != "linux", reason="the peak is read from /proc")
@pytest.mark.parametrize("form", ["csv", "parquet"])
def test_memory_is_bounded_however_large_the_table(database: str, tmp_path: Path, form: str):
    """As a whole, 256 MiB of rows would take twice that, beside what the process is itself."""
    with psycopg.connect(database) as connection:
        connection.execute(
            "create table if not exists headwater.large as "
            "select i, repeat('headwater', 29128) as text from generate_series(1, 1024) i"
        )
    # Not getrusage: its peak begins with that of whoever started the process.
    program = (
        "import sys; from pathlib import Path\n"
        "from headwater.gateway.cli.export import export\n"
        "export(sys.argv[1:], standalone_mode=False)\n"
        "status = Path('/proc/self/status').read_text()\n"
        "print(status.partition('VmHWM:')[2].split()[0])"
    )
    file = tmp_path / "large"
    argv = ["large", "--format", form, "-o", file, "--postgres", database]
    done = subprocess.run(
        [sys.executable, "-c", program, *argv], capture_output=True, text=True, check=True
    )
    rows = 255 * 1024 * 1024
    peak = int(done.stdout) * 1024
    assert file.stat().st_size > (rows if form == "csv" else 1_000)
    assert peak < 320 * 1024 * 1024, f"{peak / 2**20:.0f} MiB"
