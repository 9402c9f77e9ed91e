"""Postgres: projections of Kafka topics, how they are written and read."""
