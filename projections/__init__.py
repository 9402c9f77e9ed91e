"""Postgres: what can be rebuilt from Kafka, how it is kept and how it is read."""
