"""The projection of flow two: instances, runs, steps, events and log lines, and reading them."""
