"""What Faust is told of a worker's membership: aiokafka and Faust have limits of their own."""

from headwater.streams.kafka.cluster import Cluster
from headwater.streams.pipeline._faust import batch_app

A_YEAR_S = 365 * 24 * 3600


def test_a_worker_that_waits_for_partitions_stays_in_its_group_as_long_as_it_lives():
    # aiokafka takes "fetched nothing for as long" for dead, and says nothing.
    app = batch_app(app_id="waiting", cluster=Cluster("127.0.0.1:1"), member=None)
    assert app.conf.broker_max_poll_interval > A_YEAR_S
