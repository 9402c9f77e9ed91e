"""Flow one on Kafka: deliveries become rows, in the three stages of a Faust worker."""
