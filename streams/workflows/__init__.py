"""The workflow engine on Kafka: the worker that owns partitions, and the command client."""
