"""Terra: types of its deliveries, whom they are about, and the columns that they set."""
