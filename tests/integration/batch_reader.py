"""Reads a topic with Faust: `python -m tests.integration.batch_reader KAFKA TOPIC FILE`.

What the records of the topic are is appended to the file, a line each, before they are committed.
"""

import sys
from pathlib import Path

from headwater.streams.kafka.cluster import Cluster
from headwater.streams.pipeline._faust import Batch, batch_app, consume, run


def main() -> None:
    kafka, topic, name = sys.argv[1:]
    app = batch_app(app_id="tests", cluster=Cluster(kafka), member=None)

    def write(batch: Batch) -> None:
        with Path(name).open("a") as file:
            file.writelines(f"{record.value.decode()}\n" for record in batch.records)

    async def process(batch: Batch) -> None:
        write(batch)
        batch.done()

    consume(app, name="tests", topic=topic, process=process)
    sys.exit(not run(app))


if __name__ == "__main__":
    main()
