"""Routes of users: connecting wearables, what is connected, importing days, and lab reports."""
