select version, checksum from schema_migrations
