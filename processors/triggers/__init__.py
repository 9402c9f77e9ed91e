"""Which deliveries start and signal which workflows: rules, and what they say of a delivery."""
