"""Kafka: the Faust app and its agents, tables, dead letters, and the clients that append."""
