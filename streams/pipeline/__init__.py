"""The delivery pipeline on Kafka: deliveries become rows, in the one stage of a Faust worker."""
