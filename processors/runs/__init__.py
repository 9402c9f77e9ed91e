"""State, life cycle and mailbox that all runs share, whatever kind their workflow is."""
