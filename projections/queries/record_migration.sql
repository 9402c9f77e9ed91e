insert into schema_migrations (version, checksum) values (%(version)s, %(checksum)s)
