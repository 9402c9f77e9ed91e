"""Kafka for the other rooms: reading and appending in batches, topics, the embedded broker."""
