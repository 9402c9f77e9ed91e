"""Ownership of Kafka partitions: their phases, claims, deadlines, membership and watchdogs."""
