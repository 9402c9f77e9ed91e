"""What all runs share, whatever language their workflow is written in: life cycle and mailbox."""
