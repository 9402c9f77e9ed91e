"""Everything that runs on Kafka: the delivery pipeline, the workflow engine, and their clients."""
