"""`headwater doctor` and `validate-ownership`: checks of the system, or of one user's data."""

import asyncio
import json
import shutil
import ssl
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import partial
from http import HTTPStatus
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import urlsplit

import click

from headwater.gateway.cli import findings
from headwater.gateway.cli.api import (
    Api,
    admin_api,
    admin_options,
    explained,
    path_of,
    readable_errors,
)
from headwater.gateway.cli.findings import Finding
from headwater.gateway.cli.on_demand import Group
from headwater.gateway.cli.options import (
    admin_flags,
    examples,
    kafka_option,
    postgres_option,
    settings_from,
)
from headwater.gateway.cli.results import Columns, Result, json_option, print_result, prints
from headwater.gateway.cli.user_findings import user_findings
from headwater.gateway.settings.database import dsn_of
from headwater.gateway.settings.exposure import DEVELOPMENT_SECRETS, is_loopback
from headwater.schemas.errors import HeadwaterError
from headwater.streams.clock import now_ms

if TYPE_CHECKING:
    from headwater.gateway.settings.settings import Settings
    from headwater.streams.kafka.cluster import Cluster
    from headwater.streams.kafka.membership import ClusterState
    from headwater.streams.kafka.topics import TopicState


_PASS = "pass"  # noqa: S105 (no password)
_FAIL = "fail"
_OWNERSHIP: Final = Columns(("what", "found"))


@click.command(
    epilog=examples(
        "headwater validate-ownership",
        "headwater validate-ownership --strict    in a deployment pipeline",
    )
)
@click.option("--strict", is_flag=True, help="Exit 1 also on a warning.")
@admin_options
@prints
def validate_ownership(strict: bool, api: Api) -> Result:
    """Check that only workers are requested to execute runs.

    Exits 1 if not. The gateway counts callbacks of queues for 15 minutes.
    HEADWATER_STRICT_OWNERSHIP sets whether they are a failure or a warning.
    """
    report = api.get("/v1/diagnostics/ownership")
    table = _OWNERSHIP.table({"what": name, "found": value} for name, value in report.items())
    foreign = "A queue or webhook posts to the gateway, or an app host has another World."
    return Result(
        answer=report,
        tables=[table],
        hints=[] if report["status"] == _PASS else [foreign],
        failed=report["status"] == _FAIL or (strict and report["status"] != _PASS),
    )


# -- `headwater doctor`

_FINDINGS: Final = Columns(
    Finding._fields,
    styles={"state": {"problem": "red", "warning": "yellow", "unknown": "yellow"}},
)
_TIMEOUT_S: Final = 5.0
_ERRORS_SHOWN: Final = 20
#: Newest rebuilds among which the latest verifications are.
_REBUILDS: Final = 1_000
#: The projection of workflows; all others are tables.
_WORKFLOWS: Final = "workflows"


@click.group(
    cls=Group,
    invoke_without_command=True,
    epilog=examples(
        "headwater doctor", "headwater doctor --json", "headwater doctor user user_amara"
    ),
)
@admin_flags
@kafka_option
@postgres_option
@json_option
@click.pass_context
def doctor(
    context: click.Context,
    url: str | None,
    admin_key: str | None,
    kafka: str | None,
    postgres: str | None,
    as_json: bool,
) -> None:
    """Check the system: processes, versions, topics, lag, deployment, disk, clock, TLS.

    Every line shows a finding and what to do about it. Exit code 1 if something needs a repair.
    """
    if context.invoked_subcommand is None:
        settings = settings_from(admin_key=admin_key, kafka=kafka, postgres=postgres)
        api = admin_api(url, admin_key)
        print_result(_report(list(_system_checks(settings, api))), as_json=as_json)


@doctor.command("user", epilog=examples("headwater doctor user user_amara"))
@click.argument("user_id", metavar="ID")
@click.option("--token", help="The user's token, to query Terra through /v1/me as well.")
@admin_options
@prints
def doctor_user(user_id: str, token: str | None, api: Api) -> Result:
    """Find out why data of a user is missing, in six steps.

    Has every provider an active connection; does Terra know one; do deliveries wait or are they
    dead; did any end with an error; and has every provider rows. Every step prints its finding and
    the next command. Exit code 1 if something needs a repair: a connection that has ended is only a
    warning, because its user may have ended it.
    """
    user = api.get(path_of("admin", "user", user_id))
    me = None if token is None else _me(api.url, token)
    errors = api.get("/admin/traces", user_id=user_id, level="error", limit=_ERRORS_SHOWN)
    return _report(user_findings(api.url, user, errors["traces"], me))


def _me(address: str, token: str) -> Any:  # noqa: ANN401 (JSON)
    answer = Api(address, {"authorization": f"Bearer {token}"}).exchange("/v1/me")
    if not answer.ok:
        problem = answer.problem
        detail = problem.get("detail") or f"/v1/me answered {answer.status}"
        raise click.ClickException(explained(problem.get("code", ""), detail))
    from headwater.gateway.client.answers import value_of  # noqa: PLC0415 (loads more than --help needs)

    with readable_errors():
        return value_of(answer, object)


def _report(results: Sequence[Finding]) -> Result:
    well, rows = findings.is_well(results), [finding._asdict() for finding in results]
    answer = {"well": well, "findings": rows}
    return Result(answer=answer, tables=[_FINDINGS.table(rows)], failed=not well)


def _system_checks(settings: "Settings", api: Api) -> Iterator[Finding]:
    """Run all checks of the system. A check that fails is a finding, and stops no other."""
    gateway = _Gateway(api)
    with ThreadPoolExecutor() as pool:  # A server that does not answer delays no other check.
        answered = pool.submit(_checked, "gateway", gateway.finding, "headwater serve")
        kafka = pool.submit(_kafka, settings)
        migrations = pool.submit(_migrations, settings, gateway)
        certificates = pool.submit(_checked, "certificates", partial(_certificates, settings, api))
        yield answered.result()
        yield from _kafka_checks(settings, gateway, kafka.result())
        yield migrations.result()
        yield findings.refused_records(gateway.errors)
        yield findings.clock(gateway.clock)
        rows = partial(_verification, settings, gateway, api)
        yield _checked("rows", rows, "headwater rebuild --verify")
        yield _checked("auditor", partial(_auditor, gateway, api))
        yield _checked("keys", partial(_keys, settings, gateway, api))
        yield _checked("disk", lambda: _disk(settings.data_dir))
        yield from _monitored(settings)
        yield certificates.result()


def _checked(check: str, run: Callable[[], Finding], remedy: str = "") -> Finding:
    try:
        return run()
    except (HeadwaterError, click.ClickException, OSError) as error:
        return _problem(check, error, remedy)


def _problem(check: str, error: Exception, remedy: str) -> Finding:
    text = error.message if isinstance(error, HeadwaterError | click.ClickException) else error
    return Finding(check, "problem", " ".join(str(text).split()), remedy)


class _Gateway:
    """Collects what the gateway reports about itself and the projections."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self.version = ""
        self.clock: dict[str, float] = {}
        self.positions: list[dict[str, Any]] = []
        self.errors: int | None = None

    def finding(self) -> Finding:
        """Collect everything.

        Raises:
            ClickException: The gateway did not answer as expected.
        """
        self._api.get("/health/live")
        sent_ms = now_ms()
        ready = self._api.exchange("/health/ready")
        received_ms = now_ms()
        try:
            self.version = str(self._api.get("/schema/openapi.json")["info"]["version"])
            parts = dict(json.loads(ready.body)["parts"])
        except (ValueError, LookupError, TypeError) as error:
            raise click.ClickException(
                f"expected Headwater at {self._api.url}, found something else there; set its URL "
                "with --url or HEADWATER_URL"
            ) from error
        date = ready.headers.get("date")
        if date:
            server_s = parsedate_to_datetime(date).timestamp()
            self.clock["gateway"] = findings.clock_offset_s(
                server_s, sent_ms / 1000, received_ms / 1000
            )
        summary = ", ".join(f"{name}: {state}" for name, state in parts.items())
        if any(state != "ok" for state in parts.values()):
            return Finding("gateway", "problem", summary, "start what is not connected")
        projections = self._api.get("/admin/projections")
        self.positions, self.errors = projections["positions"], len(projections["errors"])
        return Finding("gateway", "ok", f"{self._api.url}: {summary}")


class _Kafka(NamedTuple):
    """What Kafka reports of the system."""

    state: "ClusterState"
    topics: Mapping[str, "TopicState"]
    deployment: Finding


def _kafka(settings: "Settings") -> _Kafka | Finding:
    """Query Kafka; return the finding if it does not answer."""
    from headwater.gateway.settings.cluster import cluster_of  # noqa: PLC0415 (loads slowly)
    from headwater.streams.kafka.membership import inspect_cluster  # noqa: PLC0415 (loads slowly)
    from headwater.streams.kafka.topics import describe_catalog  # noqa: PLC0415 (loads slowly)

    async def queried() -> _Kafka:
        cluster = cluster_of(settings)
        deployment = asyncio.create_task(_deployment(cluster, settings))
        status, topics = await asyncio.gather(inspect_cluster(cluster), describe_catalog(cluster))
        return _Kafka(status, topics, await deployment)

    try:
        return asyncio.run(queried())
    except (HeadwaterError, click.ClickException) as error:
        return _problem("kafka", error, "start Kafka")


def _kafka_checks(
    settings: "Settings", gateway: _Gateway, kafka: _Kafka | Finding
) -> Iterator[Finding]:
    if isinstance(kafka, Finding):
        yield kafka
        return
    from headwater.gateway.settings.cluster import cluster_of  # noqa: PLC0415 (loads slowly)
    from headwater.streams.kafka.topics import compare, named_in_kafka  # noqa: PLC0415 (loads slowly)

    ours, state = version("headwater"), kafka.state
    yield findings.parts([member.name for member in state.members])
    older = {member.name: member.older for member in state.members if member.older}
    yield findings.versions(ours, gateway.version or ours, older)
    differences = compare(
        kafka.topics, partitions=settings.partitions, replication=settings.replication
    )
    yield findings.topics(named_in_kafka(cluster_of(settings), differences))
    pipeline = settings.app_id
    behind = {
        "pipeline" if group == pipeline else group: number for group, number in state.behind.items()
    }
    for row in gateway.positions:
        end = state.ends.get((row["topic"], row["partition"]), 0)
        name = f"projection {row['projection']}"
        behind[name] = behind.get(name, 0) + max(0, end - row["next_offset"])
    yield findings.lag(behind)
    yield kafka.deployment


async def _deployment(cluster: "Cluster", settings: "Settings") -> Finding:
    """Find the active deployment, and try it as a worker does."""
    from headwater.streams.workflows.code_folders import trial_problem  # noqa: PLC0415 (loads slowly)
    from headwater.streams.workflows.deployment_log import DeploymentLog  # noqa: PLC0415 (loads slowly)

    log, problem = DeploymentLog(cluster=cluster, client_id="headwater-doctor"), ""
    try:
        active = (await log.catch_up()).active
        if active is not None:
            problem = await trial_problem(
                log,
                active,
                state=settings.state_dir,
                policy=settings.environment_policy,
                passed=settings.app_environment,
            )
    except HeadwaterError as error:
        return _problem("deployment", error, "start Kafka")
    finally:
        await log.stop()
    return findings.deployment(active, problem)


def _migrations(settings: "Settings", gateway: _Gateway) -> Finding:
    from headwater.projections.postgres.migrate import unapplied  # noqa: PLC0415 (loads slowly)

    def check() -> Finding:
        missing, server_time = unapplied(dsn_of(settings))
        gateway.clock["postgres"] = server_time.timestamp() - now_ms() / 1000
        return findings.migrations(missing)

    return _checked("migrations", check, "start Postgres, and `headwater migrate`")


def _verification(settings: "Settings", gateway: _Gateway, api: Api) -> Finding:
    if gateway.errors is None:
        return Finding("rows", "unknown", "the gateway did not answer")
    answer = api.get("/admin/rebuilds", limit=_REBUILDS)
    now = datetime.fromtimestamp(now_ms() / 1000, UTC)
    names = answer["projections"]
    # Tables of a provider that was uninstalled cannot be compared any more.
    rebuilds = [row for row in answer["rebuilds"] if row["projection"] in names]
    # The schedule leaves out workflows.
    scheduled = [name for name in names if name != _WORKFLOWS] if settings.verify_cron else []
    return findings.verification(rebuilds, now, scheduled)


def _auditor(gateway: _Gateway, api: Api) -> Finding:
    if gateway.errors is None:
        return Finding("auditor", "unknown", "the gateway did not answer")
    now = datetime.fromtimestamp(now_ms() / 1000, UTC)
    return findings.audited(api.find("/admin/auditor"), now)


def _keys(settings: "Settings", gateway: _Gateway, api: Api) -> Finding:
    """Check the API keys, and the keys of the settings that this command uses."""
    from headwater.gateway.settings.settings import revealed  # noqa: PLC0415 (loads slowly)

    if gateway.errors is None:
        return Finding("keys", "unknown", "the gateway did not answer")
    is_remote = not is_loopback(urlsplit(api.url).hostname or "")
    published = [
        name
        for name, public in DEVELOPMENT_SECRETS.items()
        if is_remote and public in revealed(getattr(settings, name))
    ]
    answer = api.exchange("/v1/keys")
    if answer.status == HTTPStatus.FORBIDDEN:
        return Finding("keys", "unknown", "the key does not have the scope keys:read")
    listed = api.get("/v1/keys")["keys"]
    return findings.keys(listed, published, datetime.fromtimestamp(now_ms() / 1000, UTC))


def _disk(folder: Path) -> Finding:
    existing = next(
        path for path in (folder.absolute(), *folder.absolute().parents) if path.exists()
    )
    usage = shutil.disk_usage(existing)
    return findings.disk(str(existing), usage.free, usage.total)


def _monitored(settings: "Settings") -> Iterator[Finding]:
    """Check the readiness of the processes of `headwater up`, if it runs in this data folder."""
    from headwater.gateway.cli.monitored import read_targets  # noqa: PLC0415 (loads slowly)

    states = {}
    for target in read_targets(settings):
        (address,) = target.targets
        name = target.labels.get("name", target.labels["process"])
        states[f"{name} at {address}"] = _readiness(f"http://{address}")
    if states:
        yield findings.monitored(states)


def _readiness(url: str) -> str:
    try:
        parts: dict[str, str] = json.loads(Api(url, {}).exchange("/health/ready").body)["parts"]
    except (click.ClickException, ValueError, LookupError):
        return "no answer"
    waiting = [f"{name}: {state}" for name, state in parts.items() if state != "ok"]
    return ", ".join(waiting) or "ready"


def _certificates(settings: "Settings", api: Api) -> Finding:
    ends: dict[str, datetime] = {}
    if settings.kafka_tls:
        for server in settings.kafka.split(","):
            host, _, port = server.rpartition(":")
            ends[f"kafka {server}"] = _server_certificate_end(host.strip("[]"), int(port))
        if settings.kafka_tls_certificate:
            ends[settings.kafka_tls_certificate] = _certificate_end(
                Path(settings.kafka_tls_certificate).read_bytes()
            )
    address = urlsplit(api.url)
    if address.scheme == "https" and address.hostname:
        ends[f"gateway {address.hostname}"] = _server_certificate_end(
            address.hostname, address.port or 443
        )
    return findings.certificates(ends, datetime.fromtimestamp(now_ms() / 1000, UTC))


def _server_certificate_end(host: str, port: int) -> datetime:
    """Return when a server's certificate expires, also if it is not trusted."""
    return _certificate_end(ssl.get_server_certificate((host, port), timeout=_TIMEOUT_S).encode())


def _certificate_end(pem: bytes) -> datetime:
    from cryptography import x509  # noqa: PLC0415 (loads slowly)

    return x509.load_pem_x509_certificate(pem).not_valid_after_utc
