"""Posting the demo day, waiting for its rows, and printing them with what to try next."""

import shlex
import shutil
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import click

from headwater.gateway.commands.api import Api
from headwater.gateway.commands.options import url_of
from headwater.gateway.commands.output import print_rows, print_sideways, say
from headwater.gateway.local.demo_day import (
    CONNECTS_LATE,
    TOO_EARLY,
    Posted,
    PostFailed,
    demo_deliveries,
    post,
)
from headwater.gateway.loopback import DEVELOPMENT_SECRETS
from headwater.gateway.settings import Settings
from headwater.projections.postgres.embedded import psql_program
from headwater.schemas.tables import DAILY_SUMMARY

#: A cold start of the pipeline takes some 10 s on a small machine.
_OUTCOMES_WITHIN_S: Final = 60.0
_ASK_EVERY_S: Final = 0.25
_SAY_EVERY_S: Final = 5.0

#: Where commands look that are not given another place.
_DEFAULT_URL: Final = "http://127.0.0.1:8080"

_USERS: Final = ("user_amara", "user_bo")
#: What is shown of the narrow tables; of the days, every column that somebody has set.
_SLEEP: Final = ("user_id", "source", "start_time", "end_time", "is_nap")
_CONNECTION: Final = ("user_id", "provider", "active", "deactivated_at")
_DAY: Final = ("user_id", "source", "datetime")


class DayFailed(Exception):
    """The demo day's rows did not come; says why, in a line."""


class DayShow:
    """The demo day, posted to a gateway and looked at through it."""

    def __init__(self, settings: Settings, clock: Callable[[], int]) -> None:
        self._settings = settings
        self._clock = clock
        self._url = url_of(settings)
        self._admin = Api(self._url, {"x-admin-key": settings.admin_key.get_secret_value()})
        self._reader = Api(
            self._url, {"authorization": f"Bearer {settings.read_key.get_secret_value()}"}
        )
        self._waited: Posted | None = None

    def run(self) -> None:
        """Posts, waits and prints.

        Errors: DayFailed.
        """
        try:
            posted, outcomes = self._post_and_wait()
            say("")
            print_rows(
                _outcome_rows(posted, outcomes),
                ("delivery", "type", "status", "reason", "rows"),
                title="deliveries",
            )
            days = self._rows_of("daily_summary", _DAY)
            columns = [column.name for column in DAILY_SUMMARY.columns]
            print_sideways(days, _DAY, columns, title="daily_summary")
            nights = self._rows_of("sleep_sessions", _SLEEP)
            print_rows(nights, _SLEEP, title="sleep_sessions")
            connections = self._rows_of("terra_connections", _CONNECTION)
            print_rows(connections, _CONNECTION, title="terra_connections")
        except (PostFailed, click.ClickException) as error:
            raise DayFailed(f"The demo day did not work: {error}") from error

    def print_hints(self) -> None:
        """Says what to try next."""
        settings = self._settings
        read_key = mentioned("read_key", settings.read_key.get_secret_value())
        admin_key = mentioned("admin_key", settings.admin_key.get_secret_value())
        say(
            f"""
Headwater is up at {self._url}; Ctrl-C stops it. Try, in another terminal:

  # all of it, in a browser; the key is {admin_key}
  {self._url}/console
  # the rows, over HTTP and in SQL
  curl -H "Authorization: Bearer {read_key}" "{self._url}/v1/sync?limit=10"
  {psql_program()} {settings.postgres}
  # the delivery that had to wait
  {self._command(*self._words_for_who_waited())}
  # the workflow, and what came of it
  {self._command("instances", "list")}
  # a copy of the rows
  {self._command("sync", "--db", "headwater.sqlite")}
  # what could not be processed: nothing
  {self._command("dlq", "list")}

The HTTP API is at {self._url}/schema; what the parts say is in {settings.data_dir / "logs"}
"""
        )

    def _words_for_who_waited(self) -> tuple[str, ...]:
        """What shows the journey of the delivery that waited; the request for a copy has none."""
        waited = self._waited
        if waited is not None and waited.duplicate:
            return ("deliveries", "show", waited.event_id)
        return ("trace", waited.request_id if waited else "REQUEST_ID")

    def _command(self, *words: str) -> str:
        """A command of ours that runs as it is printed: from any folder, at this gateway."""
        ours = str(Path(sys.executable).with_name("headwater"))
        program = "headwater" if shutil.which("headwater") == ours else ours
        where = () if self._url == _DEFAULT_URL else ("--url", self._url)
        return shlex.join((program, *words, *where))

    def _post_and_wait(self) -> tuple[list[Posted], dict[str, dict[str, Any]]]:
        """Posts in two steps, so that the delivery that comes too early is seen to wait."""
        deliveries = demo_deliveries()
        secret = self._settings.secrets_of("terra")[0]
        early = [one for one in deliveries if one.name < CONNECTS_LATE]
        late = [one for one in deliveries if one.name >= CONNECTS_LATE]
        say(f"Posting the demo day: {len(deliveries)} deliveries of two people")
        posted = post(self._reader.client, secret, early, self._clock)
        self._wait(posted, lambda outcome: True)
        posted += post(self._reader.client, secret, late, self._clock)
        outcomes = self._wait(posted, lambda outcome: outcome["status"] != "parked")
        self._waited = next(one for one in posted if one.name == TOO_EARLY)
        known = sum(one.duplicate for one in posted)
        if known:
            say(f"{known} of the {len(posted)} deliveries were there already: duplicates")
        return posted, outcomes

    def _wait(
        self, posted: Sequence[Posted], settled: Callable[[dict[str, Any]], bool]
    ) -> dict[str, dict[str, Any]]:
        """Waits until every delivery has an outcome that counts as settled."""
        began = reported = time.monotonic()
        outcomes: dict[str, dict[str, Any]] = {}
        while True:
            for one in posted:
                if one.event_id not in outcomes:
                    found = self._outcome(one.event_id)
                    if found is not None and settled(found):
                        outcomes[one.event_id] = found
            if len(outcomes) == len(posted):
                return outcomes
            now = time.monotonic()
            if now - began > _OUTCOMES_WITHIN_S:
                missing = ", ".join(one.name for one in posted if one.event_id not in outcomes)
                raise DayFailed(
                    f"expected {len(posted)} outcomes within {_OUTCOMES_WITHIN_S:.0f} s, found "
                    f"{len(outcomes)}; missing: {missing}. The logs are in "
                    f"{self._settings.data_dir / 'logs'}"
                )
            if now - reported > _SAY_EVERY_S:
                reported = now
                say(f"Waiting for rows: {len(outcomes)} of {len(posted)} deliveries are through")
            time.sleep(_ASK_EVERY_S)

    def _outcome(self, event_id: str) -> dict[str, Any] | None:
        found = self._admin.find(f"/admin/outcomes/{event_id}")
        return found if isinstance(found, dict) else None

    def _rows_of(self, table: str, order: Sequence[str]) -> list[dict[str, Any]]:
        """The demo people's rows of a table."""
        pages = [self._reader.get("/v1/sync", user_id=user, limit=1000) for user in _USERS]
        rows = [row for page in pages for row in page["tables"][table]]
        return sorted(rows, key=lambda row: [str(row[name]) for name in order])


def _outcome_rows(
    posted: Sequence[Posted], outcomes: Mapping[str, dict[str, Any]]
) -> list[dict[str, Any]]:
    return [{"delivery": one.name, **outcomes[one.event_id]} for one in posted]


def mentioned(name: str, secret: str) -> str:
    """A key in an example: itself if everybody knows it, else the variable that holds it."""
    return secret if secret == DEVELOPMENT_SECRETS[name] else f"$HEADWATER_{name.upper()}"
