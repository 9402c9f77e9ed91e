-- The switch of a schema to topics with more partitions (ADR 0101), in one transaction.

-- name: lock_topic_prefix
select topic_prefix from projection_identity for update

-- name: applied_by_all
-- What all projections have applied of each partition.
select topic, partition, min(next_offset)
from projection_offsets
group by topic, partition

-- name: running_rebuilds
select id from rebuilds where state in ('building', 'switching', 'switching_back') order by id

-- name: grow_projection_offsets
-- New partitions end at the offset of the one whose keys they share.
insert into projection_offsets
    (projection, topic, partition, next_offset, applied_at, epoch, cause, leader_epoch)
select
    projection, topic, partition + %(before)s * number, next_offset, applied_at, epoch, cause,
    leader_epoch
from projection_offsets, generate_series(1, %(times)s - 1) as number
where topic = any(%(topics)s::text[]) and partition < %(before)s
on conflict (projection, topic, partition) do update set
    next_offset = excluded.next_offset, epoch = excluded.epoch, cause = excluded.cause

-- name: forget_leader_epochs
-- They are those of the old topics.
update projection_offsets set leader_epoch = -1

-- name: empty_projection_offsets
delete from projection_offsets where topic = any(%(topics)s::text[])

-- name: grow_wipes
insert into wipes (user_sha256, partition, wipe_id, found, ordered_at, done_at)
select user_sha256, partition + %(before)s * number, wipe_id, '{}', ordered_at, done_at
from wipes, generate_series(1, %(times)s - 1) as number
where partition < %(before)s
on conflict do nothing

-- name: instances_of_partitions
select workflow_name, instance_id from workflow_instance

-- name: move_instances
update workflow_instance i
set partition = moved.partition
from unnest(%(workflows)s::text[], %(instances)s::text[], %(partitions)s::integer[])
    as moved (workflow_name, instance_id, partition)
where i.workflow_name = moved.workflow_name and i.instance_id = moved.instance_id

-- name: move_runs
update workflow_run r
set partition = moved.partition
from unnest(%(workflows)s::text[], %(instances)s::text[], %(partitions)s::integer[])
    as moved (workflow_name, instance_id, partition)
where r.workflow_name = moved.workflow_name and r.instance_id = moved.instance_id

-- name: keys_of_step_commits
select distinct instance_key from step_commits

-- name: move_step_commits
update step_commits c
set partition = moved.partition
from unnest(%(keys)s::text[], %(partitions)s::integer[]) as moved (instance_key, partition)
where c.instance_key = moved.instance_key

-- name: forget_step_epochs
-- Fences the owners of the old partitions, if one of them should still run.
delete from step_epochs

-- name: move_topic_prefix
update projection_identity
set topic_prefix = %(prefix)s, growths = growths || jsonb_build_array(%(growth)s::jsonb)

-- name: topic_growths
select growths from projection_identity
