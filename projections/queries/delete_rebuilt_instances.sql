-- Rows and examples of rebuilds about deleted instances.
with deleted as (
    select * from json_to_recordset(%(rows)s::json) as r (workflow_name text, instance_id text)
),
shown as (
    update rebuilds r
    set examples = (
        select coalesce(jsonb_agg(example), '[]')
        from jsonb_array_elements(r.examples) as example
        where not exists (
            select from deleted d
            where example -> 'key' ->> 'workflow_name' = d.workflow_name
              and example -> 'key' ->> 'instance_id' = d.instance_id
        )
    )
    where r.projection = 'workflows' and r.examples <> '[]'
)
delete from rebuild_rows r
using deleted d, rebuilds b
where b.id = r.rebuild
  and b.projection = 'workflows'
  and convert_from(r.key, 'UTF8')::json ->> 1 = d.workflow_name
  and convert_from(r.key, 'UTF8')::json ->> 2 = d.instance_id
