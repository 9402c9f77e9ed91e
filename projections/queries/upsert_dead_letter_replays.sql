with markers as (
    select r.partition, r."offset", max(to_timestamp(r.replayed_at_ms / 1000.0)) as replayed_at
    from json_to_recordset(%(rows)s::json) as r (
        partition integer, "offset" bigint, replayed_at_ms bigint
    )
    group by r.partition, r."offset"
),
kept as (
    insert into dead_letter_replays (partition, "offset", replayed_at)
    select partition, "offset", replayed_at from markers
    on conflict (partition, "offset") do update set
        replayed_at = greatest(dead_letter_replays.replayed_at, excluded.replayed_at)
    returning partition, "offset", replayed_at
)
update dead_letters d
set replayed_at = kept.replayed_at
from kept
where d.partition = kept.partition and d."offset" = kept."offset"
