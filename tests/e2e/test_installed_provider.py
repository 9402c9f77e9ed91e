"""Providers with tables of their own, installed from outside: what the docs print, and GitHub."""

import hashlib
import hmac
import json
import os
import re
import shutil
import sqlite3
import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import httpx2
import psycopg
import pytest

from tests.bare_environment import ROOT, add, built, installed, run
from tests.e2e.system import READER, System, opened
from tests.unit.github.hooks import pull_request, push
from tests.waiting import ANSWERED_WITHIN_S

SECRET = "the secret that Walks and we share"
#: GitHub has none, so it is that of development.
SECRETS = {"walks": SECRET, "github": "dev-github-secret"}
BLOCK = re.compile(r"^```(?:toml|python) (\S+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PARTS = ("gateway", "worker", "project")


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """The package of docs/providers.md, as files."""
    for name, text in BLOCK.findall((ROOT / "docs/providers.md").read_text("utf-8")):
        path = tmp_path / "package" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
    (tmp_path / "package/headwater_walks/__init__.py").write_text('"""Walks."""\n', "utf-8")
    return tmp_path / "package"


@pytest.fixture
def scripts(tmp_path: Path) -> Path:
    """The `bin` of an environment that has Headwater alone."""
    (wheel,) = built(tmp_path, ["wheel"]).glob("*.whl")
    environment = tmp_path / "bare"
    environment.mkdir()
    return installed(wheel, environment)


@pytest.fixture
def system(
    package: Path, scripts: Path, tmp_path: Path, fresh_database: str, scratch: Path
) -> Iterator[System]:
    add(scripts, package)
    # A copy: building leaves files behind.
    ignored = shutil.ignore_patterns("build", "*.egg-info", "__pycache__")
    add(scripts, shutil.copytree(ROOT / "headwater-github", tmp_path / "github", ignore=ignored))
    directory = scratch / "walks"
    directory.mkdir()
    system = System(
        directory, fresh_database, HEADWATER_WALKS_SECRETS=SECRET, HEADWATER_USER_PREFIX="user_"
    )
    system.python = scripts / "python"
    with opened(system, ()) as result:
        run(
            scripts / "headwater",
            "topics",
            "create",
            "--kafka",
            system.bootstrap,
            "--partitions",
            "4",
            cwd=tmp_path,
        )
        for part in PARTS:
            system.start(part)
        yield result


def post(system: System, user: str, day: str, **walk: object) -> str:
    """Posts a walk; tells its event id."""
    return signed(system, "walks", {"walker": user, "day": day, **walk}, **{"x-walk-event": "walk"})


def signed(system: System, source: str, posted: object, **headers: str) -> str:
    """Posts a delivery as GitHub signs it, which Walks does, too; tells its event id."""
    body = json.dumps(posted).encode()
    digest = hmac.new(SECRETS[source].encode(), body, hashlib.sha256).hexdigest()
    headers["x-hub-signature-256"] = f"sha256={digest}"
    url = f"{system.url()}/webhooks/{source}"
    taken: list[str] = []

    def is_taken() -> bool:
        answer = httpx2.post(url, content=body, headers=headers, timeout=ANSWERED_WITHIN_S)
        assert answer.status_code in (200, 503), answer.text
        if answer.is_success:
            taken.append(str(answer.json()["raw_event_id"]))
        return bool(taken)

    system.wait(is_taken, f"{posted} to be taken")
    return taken[0]


def rows(system: System, columns: str, table: str = "walks") -> list[tuple[object, ...]]:
    with psycopg.connect(system.dsn) as connection:
        try:
            return connection.execute(
                f"select {columns} from {table} order by 1, 2"  # noqa: S608
            ).fetchall()
        except (psycopg.errors.UndefinedTable, psycopg.errors.UndefinedColumn):
            return []


def synced(system: System) -> list[dict[str, object]]:
    answer = httpx2.get(f"{system.url()}/v1/sync", headers=READER, timeout=ANSWERED_WITHIN_S)
    assert answer.status_code == 200, answer.text
    result = answer.json()["tables"]["walks"]
    return [{name: row[name] for name in row if name != "updated_at"} for row in result]


def next_release(package: Path) -> None:
    """Makes the package its next release, whose table has a column more."""
    tables, provider = (package / "headwater_walks" / name for name in ("tables.py", "provider.py"))
    added = "    #: Metres climbed.\n    climbed: float | None = None\n\n\nWALKS ="
    tables.write_text(tables.read_text("utf-8").replace("\n\nWALKS =", added), "utf-8")
    text = provider.read_text("utf-8").replace(
        "    steps: int\n", "    steps: int\n    climbed: float | None = None\n"
    )
    provider.write_text(
        text.replace('{"steps": walk.steps}', '{"steps": walk.steps, "climbed": walk.climbed}'),
        "utf-8",
    )


def assert_doctor_finds_the_system(system: System, scripts: Path) -> None:
    """The state of each check depends on this machine, too: its disk may be full."""
    variables = {
        "HEADWATER_POSTGRES": system.dsn,
        "HEADWATER_PARTITIONS": "4",
        "HEADWATER_DATA_DIR": str(system.directory),
    }
    program = (scripts / "headwater", "doctor", "--json")
    argv = [*program, "--url", system.url(), "--kafka", system.bootstrap]
    expected = ("gateway", "parts", "versions", "migrations", "topics", "lag", "clock")
    result: dict[str, dict[str, str]] = {}

    def is_well() -> bool:
        """Parts say that they are there, and how far they are, a little after they are."""
        done = subprocess.run(
            argv, env={**os.environ, **variables}, capture_output=True, text=True, check=False
        )
        result.update(
            {finding["check"]: finding for finding in json.loads(done.stdout)["findings"]}
        )
        lag = result["lag"]["found"]
        return (
            all(result[check]["state"] == "ok" for check in expected)
            and "pipeline" in result["parts"]["found"]
            and "projection headwater 0" in lag
            and "pipeline 0" in lag
        )

    try:
        system.wait(is_well, "the doctor to find everything well")
    except AssertionError as waited:
        raise AssertionError(f"{result}\n{waited}") from None


def assert_rows_of_github(system: System) -> None:
    signed(system, "github", push(), **{"x-github-event": "push"})
    edited = pull_request("edited", title="Turn it", updated_at="2026-07-01T11:00:00Z")
    for hook in (edited, pull_request("opened")):
        signed(system, "github", hook, **{"x-github-event": "pull_request"})
    expected = [("mill/wheel", "refs/heads/main", 1)]
    system.wait(lambda: rows(system, "repository, ref, commits", "pushes") == expected, "a push")
    expected = [("4242", "5", "Turn it", "2026-07-01 10:00:00")]
    columns = "repository_id, number, title, (created_at at time zone 'UTC')::text"
    system.wait(lambda: rows(system, columns, "pull_requests") == expected, "a pull request")


def assert_headers_are_made_for_it(scripts: Path, folder: Path) -> None:
    """The command that the page prints."""
    (folder / "walk.json").write_text("{}", "utf-8")
    command = (scripts / "headwater", "webhook", "sign", "--source", "walks", "--type", "walk")
    made = run(*command, "walk.json", cwd=folder, HEADWATER_WALKS_SECRETS=SECRET)
    assert "x-walk-event: walk" in made.splitlines()


def start_again(system: System) -> None:
    """Start the parts of the next release, after its migration."""
    system.migrate()
    for part in PARTS:
        system.stop(part)
        system.start(part)


def test_an_installed_package_brings_its_provider_and_its_table(
    system: System, package: Path, scripts: Path, tmp_path: Path
) -> None:
    assert_headers_are_made_for_it(scripts, tmp_path)
    event_id = post(system, "user_1", "2026-07-01", steps=4_000)
    post(system, "user_1", "2026-07-01", steps=5_000)
    expected = [("user_1", "2026-07-01", 5_000)]
    system.wait(lambda: rows(system, "user_id, day::text, steps") == expected, "the row of a walk")
    with psycopg.connect(system.dsn) as connection:
        query = "select (value_source(column_sources, 'steps')).event_id = %s from walks"
        result = connection.execute(query, [event_id]).fetchone()
        assert result == (False,), "a later delivery has set it"
        comment = "select obj_description('walks'::regclass)"
        assert connection.execute(comment).fetchone() == (
            "Steps that a user walked on a day. Topic walks.",
        )
    assert synced(system) == [{"user_id": "user_1", "day": "2026-07-01", "steps": 5_000}]
    copy = tmp_path / "copy.sqlite"
    run(scripts / "headwater", "sync", "--db", copy, "--url", system.url(), cwd=tmp_path)
    with closing(sqlite3.connect(copy)) as database:
        assert database.execute("select user_id, day, steps from walks").fetchall() == expected
    subject = httpx2.get(
        f"{system.url()}/registry/subjects/walks-value/versions/latest", timeout=ANSWERED_WITHIN_S
    ).json()
    assert [field["name"] for field in json.loads(subject["schema"])["fields"]][:3] == [
        "user_id",
        "day",
        "steps",
    ]
    described = httpx2.get(f"{system.url()}/schema/openapi.json", timeout=ANSWERED_WITHIN_S).text
    assert "`walks` (user_id, day, steps): Steps that a user walked on a day." in described

    assert_rows_of_github(system)
    assert_doctor_finds_the_system(system, scripts)

    next_release(package)
    add(scripts, package)
    start_again(system)
    post(system, "user_1", "2026-07-01", steps=6_000, climbed=12.5)
    post(system, "user_2", "2026-07-02", steps=7_000)
    expected = [("user_1", 6_000, 12.5), ("user_2", 7_000, None)]
    system.wait(
        lambda: rows(system, "user_id, steps, climbed") == expected, "rows with the new column"
    )
