"""The projection of flow one: rows, outcomes and journeys of deliveries, and reading them."""
