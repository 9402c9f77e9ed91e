"""Every record that travels or rests: typed records, Avro files, the topic catalogue, the codec."""
