"""The projector: topics become rows, a batch and its offsets in one transaction."""
