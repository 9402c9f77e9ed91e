"""Built-in workflows: backfill, replay, prune, wipe and rebuild."""
