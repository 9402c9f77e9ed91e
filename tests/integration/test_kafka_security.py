"""Brokers that let in only whom they know: every client by every way in, and what refusals say."""

import asyncio
from collections.abc import Iterator, Mapping
from itertools import count
from pathlib import Path

import pytest
from aiokafka.conn import create_conn
from faust.transport.drivers.aiokafka import credentials_to_aiokafka_auth

from headwater.gateway.settings.cluster import cluster_of
from headwater.gateway.settings.environment import load_settings
from headwater.schemas.errors import BrokerUnavailable
from headwater.schemas.history import Post
from headwater.schemas.topics import DEAD_LETTERS, TRACES
from headwater.streams.clock import monotonic, now_ms
from headwater.streams.kafka.aiokafka_patches import patch_aiokafka
from headwater.streams.kafka.appender import Appender
from headwater.streams.kafka.broker_clock import BrokerClock
from headwater.streams.kafka.cluster import Cluster
from headwater.streams.kafka.embedded import EmbeddedKafka
from headwater.streams.kafka.membership import Membership
from headwater.streams.kafka.readers import read_partition
from headwater.streams.kafka.records import Outgoing
from headwater.streams.kafka.topics import create_topics
from headwater.streams.pipeline._faust import _credentials
from headwater.streams.workflows.log import WorkflowLog
from headwater.streams.workflows.publishing import Publisher
from tests.fakes.proxy import Proxy
from tests.fakes.workflow_log import append, counted, some
from tests.kafka_security import (
    PASSWORD,
    USER,
    Certificates,
    secured_broker,
    token_endpoint,
    unsigned_token,
)
from tests.waiting import until

PATIENCE_S = 60.0
_PARTITIONS = count()


@pytest.fixture(scope="module")
def certificates(scratch: Path) -> Certificates:
    directory = scratch / "certificates"
    directory.mkdir()
    return Certificates(directory)


@pytest.fixture(scope="module")
def broker(scratch: Path, certificates: Certificates) -> Iterator[EmbeddedKafka]:
    broker = secured_broker(scratch / "secured", certificates)
    try:
        address = broker.start()
        asyncio.run(create_topics(Cluster(address), partitions=8, replication=1))
        yield broker
    finally:
        broker.stop()


@pytest.fixture(scope="module")
def tokens() -> Iterator[str]:
    with token_endpoint() as endpoint:
        yield endpoint.url


#: By name: the listener, and the settings but for those that are the same for all.
WAYS: Mapping[str, tuple[str, Mapping[str, str]]] = {
    "tls": ("TLS", {}),
    "client certificate": ("MTLS", {"kafka_tls_certificate": "the client's"}),
    **{
        f"{mechanism} over {listener}": (
            listener,
            {"kafka_sasl": mechanism, "kafka_user": USER, "kafka_password": PASSWORD},
        )
        for mechanism in ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
        for listener in ("SASL", "SASL_TLS")
    },
    "a token of a file": ("SASL", {"kafka_sasl": "OAUTHBEARER", "kafka_token_file": "a token"}),
    "a token of an endpoint": (
        "SASL_TLS",
        {
            "kafka_sasl": "OAUTHBEARER",
            "kafka_token_url": "the endpoint",
            "kafka_token_client": USER,
            "kafka_token_secret": PASSWORD,
        },
    ),
}


class Ways:
    """Clusters by their way in, made from settings as an operator would set them."""

    def __init__(self, broker: EmbeddedKafka, certificates: Certificates, tokens: str) -> None:
        self._broker = broker
        self._certificates = certificates
        self._stand_for = {
            "the client's": lambda: certificates.client,
            "the endpoint": lambda: tokens,
            "a token": self._token_file,
        }

    def _token_file(self) -> str:
        file = self._certificates.directory / "token"
        file.write_text(unsigned_token(3600) + "\n")
        return str(file)

    def __call__(self, listener: str, **settings: str) -> Cluster:
        provided = {
            name: self._stand_for[value]() if value in self._stand_for else value
            for name, value in settings.items()
        }
        if "TLS" in listener or listener in ("EXPIRED", "ELSEWHERE"):
            provided = {"kafka_tls": "true", "kafka_tls_ca": self._certificates.ca} | provided
        address = self._broker.address_of(listener)
        return cluster_of(load_settings(kafka=address, **provided))


@pytest.fixture(scope="module")
def way(broker: EmbeddedKafka, certificates: Certificates, tokens: str) -> Ways:
    return Ways(broker, certificates, tokens)


@pytest.mark.parametrize("name", WAYS)
def test_every_client_gets_in(way: Ways, name: str):
    listener, settings = WAYS[name]
    cluster = way(listener, **settings)
    record = Outgoing(DEAD_LETTERS, next(_PARTITIONS) % 8, b"key", name.encode())

    async def scenario() -> None:
        assert await create_topics(cluster, partitions=8, replication=1) == []
        appender = Appender(cluster=cluster, client_id="test")
        await appender.append([record])
        await appender.stop()
        reading = read_partition(cluster, [DEAD_LETTERS], record.partition)
        assert name.encode() in [item.value async for some in reading for item in some]
        await publish(cluster, name)
        await own(cluster, record.partition)

    asyncio.run(scenario())
    membership = Membership(cluster=cluster, member=name, on_versions=lambda _forms: None)
    try:
        assert membership.join(PATIENCE_S)
    finally:
        membership.stop()


async def own(cluster: Cluster, partition: int) -> None:
    """Appends to the history, over a connection of its own, and once more over another."""
    log = WorkflowLog(cluster=cluster, client_id="test", clock=BrokerClock(now_ms, monotonic))
    epoch = await log.claim(partition, "worker-1")
    assert await append(log, partition, some(epoch, 3)) == epoch + 1
    (leader,) = log._sender._leaders.values()
    assert leader.connection is not None
    leader.connection._transport.abort()
    await until(lambda: leader.connection is None)
    assert await append(log, partition, some(epoch, 2, 3)) == epoch + 4
    result = await counted(log, partition, epoch, epoch + 6)
    assert [number for _, number in result] == [0, 1, 2, 3, 4]
    await log.stop()


async def publish(cluster: Cluster, key: str) -> None:
    """One record in a transaction."""
    sent = asyncio.Event()
    publisher = Publisher(cluster=cluster, partition=0, topic=TRACES, sent=lambda *_: sent.set())
    order = next(_PARTITIONS)
    publisher.queue(key, [Post(number=1, topic=TRACES, value="1", order=order)])
    running = asyncio.create_task(publisher.run())
    async with asyncio.timeout(PATIENCE_S):
        await sent.wait()
    running.cancel()
    await asyncio.wait([running])


@pytest.mark.parametrize("name", WAYS)
def test_faust_makes_the_same_of_a_cluster_as_other_clients(way: Ways, name: str):
    listener, settings = WAYS[name]
    cluster = way(listener, **settings)
    options = cluster.options()
    del options["bootstrap_servers"]
    assert {"ssl_context": None} | dict(
        credentials_to_aiokafka_auth(_credentials(cluster))
    ) == options


OTHERWISE = "usual cause: it expects other security, TLS, SASL or the certificate of a client"
REFUSED = {
    "a wrong password": (
        "SASL",
        {"kafka_sasl": "SCRAM-SHA-512", "kafka_user": USER, "kafka_password": "wrong"},
        "invalid credentials with SASL mechanism SCRAM-SHA-512",
    ),
    "a wrong password in the clear": (
        "SASL_TLS",
        {"kafka_sasl": "PLAIN", "kafka_user": USER, "kafka_password": "wrong"},
        "Invalid username or password",
    ),
    "a wrong secret at the endpoint": (
        "SASL",
        {
            "kafka_sasl": "OAUTHBEARER",
            "kafka_token_url": "the endpoint",
            "kafka_token_client": USER,
            "kafka_token_secret": "wrong",
        },
        'found: 401 {"error": "invalid_client"}',
    ),
    "a token that has expired": (
        "SASL",
        {"kafka_sasl": "OAUTHBEARER", "kafka_token_file": "an old token"},
        'the token is refused: {"status":"invalid_token"}',
    ),
    "a broker of another authority": (
        "TLS",
        {"kafka_tls_ca": "another"},
        "its certificate is not trusted: unable to get local issuer certificate",
    ),
    "an expired certificate": (
        "EXPIRED",
        {},
        "its certificate is not trusted: certificate has expired",
    ),
    "a broker by another name": (
        "ELSEWHERE",
        {},
        "its certificate is not trusted: IP address mismatch, certificate is not valid for "
        "'127.0.0.1'",
    ),
    "no certificate of one's own": ("MTLS", {}, OTHERWISE),
    "TLS where the broker speaks none": ("SASL", {"kafka_tls": "true"}, OTHERWISE),
    "no TLS where the broker speaks it": (
        "TLS",
        {"kafka_tls": "false", "kafka_tls_ca": ""},
        OTHERWISE,
    ),
    "no SASL where the broker asks for it": ("SASL", {}, OTHERWISE),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_refusal_says_why(way: Ways, certificates: Certificates, name: str):
    listener, settings, why = REFUSED[name]
    old = certificates.directory / "old"
    old.write_text(unsigned_token(-60))
    stand_for = {"another": certificates.foreign_ca, "an old token": str(old)}
    provided = {key: stand_for.get(value, value) for key, value in settings.items()}
    appender = Appender(cluster=way(listener, **provided), client_id="test")
    with pytest.raises(BrokerUnavailable) as caught:
        asyncio.run(appender.start())
    assert why in str(caught.value)


def test_a_broker_by_another_name_is_taken_where_names_are_not_checked(way: Ways):
    cluster = way("ELSEWHERE", kafka_tls_check_hostname="false")
    assert asyncio.run(create_topics(cluster, partitions=8, replication=1)) == []


def test_a_connection_is_closed_though_the_broker_never_says_goodbye(way: Ways):
    """As asyncio has it this takes 30 seconds."""
    patch_aiokafka()
    cluster = way("TLS")

    async def scenario(address: str) -> None:
        host, port = address.split(":")
        security = {"security_protocol": "SSL", "ssl_context": cluster.options()["ssl_context"]}
        connection = await create_conn(host, int(port), **security)
        network.hold()
        async with asyncio.timeout(25):
            await connection.close()

    with Proxy(lambda: cluster.servers) as network:
        asyncio.run(scenario(network.address))
