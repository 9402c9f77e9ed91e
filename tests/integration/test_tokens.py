"""Tokens of an OIDC provider: asked for once, used by all, and replaced before they expire."""

import asyncio
from pathlib import Path

import pytest
from aiokafka.errors import KafkaConnectionError

from headwater.streams.kafka.tokens import EndpointTokens, FileTokens
from tests.kafka_security import PASSWORD, USER, TokenEndpoint, token_endpoint


class Clock:
    def __init__(self) -> None:
        self.now_s = 1_000.0

    def __call__(self) -> float:
        return self.now_s


def tokens_of(endpoint: TokenEndpoint, clock: Clock, secret: str = PASSWORD) -> EndpointTokens:
    return EndpointTokens(
        url=endpoint.url, client_id=USER, client_secret=secret, scope="kafka", monotonic=clock
    )


def test_a_token_is_replaced_when_a_fifth_of_its_life_is_left():
    with token_endpoint(lifetime_s=100) as endpoint:
        clock = Clock()
        tokens = tokens_of(endpoint, clock)
        first = asyncio.run(tokens.token())
        clock.now_s += 79
        assert asyncio.run(tokens.token()) == first
        clock.now_s += 2
        assert asyncio.run(tokens.token()) != first
        assert endpoint.asked == 2 * [{"grant_type": ["client_credentials"], "scope": ["kafka"]}]


def test_clients_that_need_a_token_at_once_ask_for_one():
    async def scenario(tokens: EndpointTokens) -> set[str]:
        return set(await asyncio.gather(*(tokens.token() for _ in range(8))))

    with token_endpoint() as endpoint:
        assert len(asyncio.run(scenario(tokens_of(endpoint, Clock())))) == 1
        assert len(endpoint.asked) == 1


def test_a_refusal_and_a_provider_that_is_away_are_named():
    refused = pytest.raises(KafkaConnectionError, match=r"found: 401 .*invalid_client")
    with token_endpoint() as endpoint, refused:
        asyncio.run(tokens_of(endpoint, Clock(), secret="wrong").token())
    with pytest.raises(KafkaConnectionError, match=r"expected a token of http://.*refused"):
        asyncio.run(tokens_of(endpoint, Clock()).token())


def test_the_token_of_a_file_is_read_anew(tmp_path: Path):
    file = tmp_path / "token"
    tokens = FileTokens(file)
    for content in ("one\n", "another\n"):
        file.write_text(content)
        assert asyncio.run(tokens.token()) == content.strip()
    file.write_text("")
    with pytest.raises(KafkaConnectionError, match="found an empty file"):
        asyncio.run(tokens.token())
    file.unlink()
    with pytest.raises(KafkaConnectionError, match="found: No such file"):
        asyncio.run(tokens.token())
