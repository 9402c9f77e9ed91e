"""Terra: types of its deliveries, the users they are about, and the columns that they set."""
