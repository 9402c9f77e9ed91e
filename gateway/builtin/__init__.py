"""The built-in workflows: backfill, import, labs, reconcile, replay, prune and wipe."""
