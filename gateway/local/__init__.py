"""`headwater up`: all parts on this machine, supervised, with a day of deliveries to look at."""
