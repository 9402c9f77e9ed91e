"""`headwater sources` and `headwater webhook`, as they are typed."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from headwater.gateway.cli.main import cli
from headwater.gateway.cli.webhook import read_headers
from headwater.gateway.settings.environment import load_settings
from headwater.gateway.settings.sources import sources_of, with_development_sources

DEVELOPMENT = with_development_sources(load_settings())
BODY = b'{"type":"daily"}\n'


@pytest.fixture
def body(tmp_path: Path) -> Path:
    file = tmp_path / "delivery.json"
    file.write_bytes(BODY)
    return file


def run(*arguments: object, given: bytes | None = None) -> Result:
    return CliRunner().invoke(cli, [str(argument) for argument in arguments], input=given)


def signed(file: Path, source: str, tmp_path: Path) -> Path:
    made = run("webhook", "sign", "--source", source, file)
    assert made.exit_code == 0, made.output
    headers = tmp_path / "headers.txt"
    headers.write_text(made.stdout)
    return headers


@pytest.mark.parametrize("source", ["terra", "standard", "svix", "stripe", "github", "shopify",
                                    "slack", "plain"])  # fmt: skip
def test_what_sign_prints_verify_takes(body: Path, tmp_path: Path, source: str) -> None:
    headers = signed(body, source, tmp_path)
    result = run("webhook", "verify", "--source", source, "--headers", headers, body)
    assert result.exit_code == 0, result.output
    assert "Accepted: secret 1 of 1" in result.stderr
    assert "secret" in result.stdout
    assert "dev-" not in result.output


def test_headers_are_one_object_in_json_and_verify_takes_them(body: Path, tmp_path: Path) -> None:
    made = run("webhook", "sign", "--json", body)
    listed = tmp_path / "headers.txt"
    listed.write_text(
        "".join(f"{name}: {value}\n" for name, value in json.loads(made.stdout).items())
    )
    assert run("webhook", "verify", "--headers", listed, body).exit_code == 0


@pytest.mark.parametrize(("source", "header"), [("github", "x-github-event"),
                                               ("shopify", "x-shopify-topic")])  # fmt: skip
def test_what_is_signed_says_its_type_where_the_gateway_looks_for_it(
    body: Path, source: str, header: str
) -> None:
    assert f"{header}: example\n" in run("webhook", "sign", "--source", source, body).stdout
    made = run("webhook", "sign", "--source", source, "--type", "push", body)
    headers = read_headers(made.stdout.splitlines())
    (read,) = (one.provider.read for one in sources_of(DEVELOPMENT) if one.name == source)
    assert read(BODY, headers).type == "push"


def test_a_type_is_taken_only_where_a_header_says_it(body: Path) -> None:
    refused = run("webhook", "sign", "--source", "stripe", "--type", "invoice.paid", body)
    assert refused.exit_code == 2
    assert "--type: expected a source whose deliveries state it in a header" in refused.output
    assert "found stripe, whose bodies state it" in refused.output


def test_a_body_on_standard_input_is_the_same(body: Path, tmp_path: Path) -> None:
    headers = signed(body, "github", tmp_path)
    result = run("webhook", "verify", "--source", "github", "--headers", headers, given=BODY)
    assert result.exit_code == 0


def test_a_newline_too_few_is_named(body: Path, tmp_path: Path) -> None:
    headers = signed(body, "github", tmp_path)
    body.write_bytes(BODY.strip())
    result = run("webhook", "verify", "--source", "github", "--headers", headers, body)
    assert result.exit_code == 1
    assert "has signed this body with one newline at its end" in " ".join(result.stderr.split())


def test_a_stale_request_is_taken_at_its_time(body: Path) -> None:
    header = "terra-signature: t=1751371200,v1=" + "0" * 64
    result = run("webhook", "verify", "--json", "-H", header, body)
    assert json.loads(result.stdout)["reason"] == "stale"
    then = run("webhook", "verify", "--json", "-H", header, "--at", "2025-07-01T12:00:10Z", body)
    document = json.loads(then.stdout)
    assert (document["reason"], document["age_s"]) == ("signature_mismatch", 10)


def test_a_header_that_is_missing_is_said(body: Path) -> None:
    result = run("webhook", "verify", "--source", "slack", body)
    assert result.exit_code == 1
    assert "Refused: expected the header x-slack-signature, found none" in result.stderr


def test_a_source_that_is_none_is_refused_with_those_that_are(body: Path) -> None:
    result = run("webhook", "sign", "--source", "shoppy", body)
    assert result.exit_code == 2
    assert "expected one of" in result.output
    assert "shopify" in result.output


def test_sources_are_listed_without_their_secrets() -> None:
    rows = {row["source"]: row for row in json.loads(run("sources", "--json").stdout)}
    assert rows["terra"]["provider"] == "terra"
    assert rows["terra"]["secrets"] == "HEADWATER_TERRA_SECRETS"
    assert rows["github"]["provider"] == "github"
    assert rows["github"]["secrets"] == "HEADWATER_GITHUB_SECRETS"
    assert rows["shopify"]["provider"] is None
    assert rows["shopify"]["secrets"] == "1 in the file"
    assert rows["shopify"]["paths"] == "/webhooks/shopify"
    assert "dev-" not in json.dumps(rows)


def test_headers_are_read_from_what_tools_write() -> None:
    lines = ["POST /terra HTTP/1.1", "> Host: here:80", "Terra-Signature: t=1,v1=a", "", "junk"]
    assert read_headers(lines) == {"host": "here:80", "terra-signature": "t=1,v1=a"}
