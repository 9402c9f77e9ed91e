"""The projection of the workflow engine: instances, runs, steps, events and log lines."""
