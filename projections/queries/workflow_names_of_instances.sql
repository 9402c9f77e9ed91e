-- Skips from name to name along the key, however many instances each has.
with recursive names (name) as (
    select min(workflow_name) from workflow_instance
    union all
    select (select min(workflow_name) from workflow_instance where workflow_name > names.name)
    from names
    where names.name is not null
)
select name from names where {of_authors}
