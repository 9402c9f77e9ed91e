"""Commands of the command line, run in this process over a fake network."""

from click.testing import CliRunner, Result

from headwater.gateway.cli.api import CliEnvironment
from headwater.gateway.cli.main import cli
from tests.unit.gateway.workflow_network import (
    Network,
)

NOW_MS = 1_795_269_600_000
ON = ("-w", "order", "-i", "order-1")
OURS = [f"HEADWATER_{name}" for name in ("URL", "HEADERS", "WORKFLOW_KEY", "HOST", "PORT")]
OK = {"ok": True, "status": {"status": "active"}}


def headwater(
    network: Network, *arguments: str, given: str | None = None, **variables: str
) -> Result:
    """Runs a command over a network, in an environment of its own."""
    cli_environment = CliEnvironment(clock=lambda: NOW_MS, network=network)
    environment = dict.fromkeys(OURS) | variables
    return CliRunner().invoke(cli, arguments, input=given, env=environment, obj=cli_environment)


def sent(network: Network, name: str) -> str | None:
    return network.asked[0].headers.get(name)


def failure(result: Result) -> str:
    """The one line of a failure; click's own errors are printed by `gateway.cli.main`."""
    assert result.exit_code in (1, 2), result.output
    assert "Traceback" not in result.output
    return result.stderr.strip().splitlines()[-1].removeprefix("Error: ")
