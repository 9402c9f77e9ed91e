"""The projector: writes topics to Postgres, each batch and its offsets in one transaction."""
