"""`WorkflowTest`: workflows in a test, without Kafka, Postgres, network, or waiting."""
