"""What starts workflows beside people and programs: rules for deliveries, and schedules."""
