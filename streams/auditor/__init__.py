"""The auditor: reads the log all the time, verifies its laws, and publishes what it finds."""
