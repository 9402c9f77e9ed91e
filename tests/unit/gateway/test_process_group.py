"""Several processes of one command: what each of them is given, and how many `up` starts."""

import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner

from headwater.gateway.api.listening import listen, reserve
from headwater.gateway.cli import process_group
from headwater.gateway.cli.main import cli
from headwater.gateway.cli.monitored import (
    publish_targets,
    read_targets,
    with_monitored_processes,
)
from headwater.gateway.cli.up import _with_processes, process_specs
from headwater.gateway.local.processes import ProcessSpec
from headwater.gateway.local.supervisor import ProcessFailed
from headwater.gateway.settings.process import GroupProcess, group_process
from headwater.gateway.settings.settings import Settings
from headwater.schemas.errors import ProcessUnavailable


def known(spec: ProcessSpec) -> GroupProcess:
    return msgspec.json.decode(spec.env["HEADWATER_GROUP_PROCESS"], type=GroupProcess)


def workers(settings: Settings) -> list[ProcessSpec]:
    spec = process_group.command("workflows", "worker", "--tick")
    return process_group.several(spec, settings, one_log=True)


def test_each_worker_has_a_name_and_a_port_of_its_own_and_starts_no_others():
    specs = workers(Settings(processes=3, member="here", worker_metrics_port=9100, app="mine"))
    assert [spec.name for spec in specs] == ["workflows-1", "workflows-2", "workflows-3"]
    assert [spec.env["HEADWATER_MEMBER"] for spec in specs] == ["here-1", "here-2", "here-3"]
    ports = [spec.env["HEADWATER_WORKER_METRICS_PORT"] for spec in specs]
    assert ports == ["9100", "9101", "9102"]
    assert {spec.env["HEADWATER_PROCESSES"] for spec in specs} == {"1"}
    assert {spec.env["HEADWATER_APP"] for spec in specs} == {"mine"}
    assert {spec.argv[1:] for spec in specs} == {("-m", "headwater", "worker", "--tick")}
    assert [known(spec).name for spec in specs] == ["workflows-1", "workflows-2", "workflows-3"]


def test_what_is_not_set_stays_so():
    specs = workers(Settings(processes=2))
    assert {spec.env["HEADWATER_MEMBER"] for spec in specs} == {""}
    assert {spec.env["HEADWATER_WORKER_METRICS_PORT"] for spec in specs} == {"0"}


def test_each_worker_answers_monitors_at_a_port_of_its_own():
    specs = workers(Settings(processes=2, metrics_address="[::1]:9600"))
    assert [spec.env["HEADWATER_METRICS_ADDRESS"] for spec in specs] == ["[::1]:9600", "[::1]:9601"]
    free = workers(Settings(processes=2, metrics_address="0.0.0.0:0"))
    assert {spec.env["HEADWATER_METRICS_ADDRESS"] for spec in free} == {"0.0.0.0:0"}


def test_up_gives_every_process_a_free_port_and_publishes_them(tmp_path: Path):
    settings = with_monitored_processes(Settings(processes=2, data_dir=tmp_path))
    host, _, first = settings.metrics_address.rpartition(":")
    assert host == "127.0.0.1"
    with listen(host, int(first)):
        assert with_monitored_processes(Settings(processes=2)).metrics_address not in (
            settings.metrics_address,
            "",
        )
    with publish_targets(settings, process_specs(settings)):
        targets = read_targets(settings)
        assert [target.targets for target in targets] == [
            ["127.0.0.1:8080"],
            *([f"{host}:{int(first) + index}"] for index in range(5)),
        ]
        assert [target.labels["process"] for target in targets] == [
            *("gateway", "pipeline", "pipeline", "projector", "workflows", "workflows")
        ]
        assert targets[2].labels["name"] == "pipeline-2"
    assert read_targets(settings) == []


def refuse_others(port: int) -> None:
    for other in (listen, reserve):
        with pytest.raises(ProcessUnavailable, match=f"cannot listen on 127.0.0.1:{port}"):
            other("127.0.0.1", port)


def test_gateways_share_a_port_that_no_other_program_gets():
    with process_group.sharing_port(Settings(port=0, processes=2)) as (settings, shared):
        specs = process_group.several(
            process_group.command("gateway", "serve"), settings, shared, one_log=True
        )
        assert [known(spec).shares_port for spec in specs] == [True, True]
        assert len({known(spec).metrics for spec in specs}) == 1
        port = settings.port
        assert {spec.env["HEADWATER_PORT"] for spec in specs} == {str(port)}
        refuse_others(port)
        first = listen("127.0.0.1", port, shared=True)
        with first, listen("127.0.0.1", port, shared=True):
            refuse_others(port)
    listen("127.0.0.1", port).close()


def test_a_port_that_is_taken_is_one_error_of_the_parent():
    with listen("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ProcessUnavailable, match=f"cannot listen on 127.0.0.1:{port}"):
            process_group.run_gateways(Settings(port=port, processes=2))


def test_a_process_learns_its_name_and_begins_its_lines_with_it(
    monkeypatch: pytest.MonkeyPatch,
):
    program = (
        "import logging\n"
        "from headwater.gateway.settings.process import log_to_stderr\n"
        "from headwater.gateway.settings.settings import Settings\n"
        "log_to_stderr(Settings(log_format='human'), 'workflows')\n"
        "logging.getLogger('headwater').info('a line')"
    )
    (first, _) = workers(Settings(processes=2))
    result = subprocess.run(
        [sys.executable, "-c", program],
        env=os.environ | first.env,
        capture_output=True,
        text=True,
        check=True,
    )
    assert result.stderr.startswith("workflows-1 | 2")
    assert result.stderr.endswith(" INFO headwater: a line\n")
    monkeypatch.delenv("HEADWATER_GROUP_PROCESS", raising=False)
    assert group_process() == GroupProcess()


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        (Settings(processes=2, tick_url="http://127.0.0.1:8090"), "--tick: expected 2 URLs"),
        (
            Settings(processes=2, worker_metrics_port=65_535),
            "expected at most 65534, found 65535 as the first port of 2 processes",
        ),
    ],
)
def test_too_few_addresses_are_named_before_anything_is_started(settings: Settings, problem: str):
    with pytest.raises(Exception, match=problem):
        process_group.run_workers(settings, "--tick", ticked=bool(settings.tick_urls))


@pytest.mark.parametrize(
    ("cores", "partitions", "number"),
    [(1, 4, 1), (2, 4, 1), (3, 4, 1), (4, 4, 2), (8, 4, 4), (16, 4, 4), (16, 12, 8), (8, 1, 1)],
)
def test_how_many_processes_up_starts(cores: int, partitions: int, number: int):
    assert _with_processes(Settings(partitions=partitions), cores).processes == number
    assert _with_processes(Settings(processes=3), cores).processes == 3


def test_up_starts_several_gateways_and_workers_and_one_projector():
    shared = GroupProcess(shares_port=True, metrics="m")
    specs = process_specs(Settings(processes=2, app="mine"), shared)
    assert [spec.name for spec in specs] == [
        "gateway-1",
        "gateway-2",
        "pipeline-1",
        "pipeline-2",
        "projector",
        "workflows-1",
        "workflows-2",
    ]
    # In files of their own, so without a name in each line.
    assert {known(spec) for spec in specs[:2]} == {shared}
    assert [spec.env["HEADWATER_MEMBER"] for spec in specs[2:]] == [
        "up-pipeline-1",
        "up-pipeline-2",
        "up-projector",
        "up-workflows-1",
        "up-workflows-2",
    ]


def test_up_ends_with_the_code_of_a_worker_whose_name_another_has_taken(
    monkeypatch: pytest.MonkeyPatch,
):
    def run_up(*_args: object, **_options: object) -> None:
        raise ProcessFailed("workflows ended (exit code 78)", os.EX_CONFIG)

    monkeypatch.setattr("headwater.gateway.cli.up.run_up", run_up)
    result = CliRunner().invoke(cli, ["up", "--no-demo"])
    assert result.exit_code == os.EX_CONFIG
    assert result.stderr == "headwater: workflows ended (exit code 78)\n"


def test_up_with_one_of_each_is_as_it_was():
    specs = process_specs(Settings(processes=1))
    assert [spec.name for spec in specs] == ["gateway", "pipeline", "projector", "workflows"]
    assert all("HEADWATER_GROUP_PROCESS" not in spec.env for spec in specs)
