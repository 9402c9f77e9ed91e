with deleted as (
    delete from dead_letters d
    using json_to_recordset(%(rows)s::json) as r (
        topic text, partition integer, "offset" bigint, reason text, rule text
    )
    where d.original_topic = r.topic
      and d.original_partition = r.partition
      and d.original_offset = r."offset"
      and d.reason = r.reason
      and coalesce(d.rule, '') = r.rule
    returning d.partition, d."offset"
)
delete from dead_letter_replays replays
using deleted
where replays.partition = deleted.partition and replays."offset" = deleted."offset"
