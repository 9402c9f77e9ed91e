where (
    select max((d ->> 'sent_at')::timestamptz)
    from json_array_elements(excluded.column_sources -> 'deliveries') d
) >= (
    select max((d ->> 'sent_at')::timestamptz)
    from json_array_elements(terra_connections.column_sources -> 'deliveries') d
)
