"""All records that are sent or stored: record types, Avro files, the topic catalog, the codec."""
