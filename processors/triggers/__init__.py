"""Rules: which deliveries start and signal which workflows."""
