"""Flow two on Kafka: the worker that owns partitions, and the client that sends commands."""
