"""`headwater up`: supervised processes on this machine, with a day of demo deliveries."""
