"""The projection of the delivery pipeline: rows, outcomes and traces of deliveries."""
