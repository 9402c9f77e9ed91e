"""What authors of workflows hold in their hands, and what becomes of their values."""
