"""The demo: a day of deliveries, as files, and a workflow that reports on it."""
