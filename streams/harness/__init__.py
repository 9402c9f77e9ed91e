"""`WorkflowTest`: tests of workflows without Kafka, Postgres, network, or waiting."""
