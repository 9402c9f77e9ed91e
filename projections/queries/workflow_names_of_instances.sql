-- From name to name along the key, however many instances each has.
with recursive found (name) as (
    select min(workflow_name) from workflow_instance
    union all
    select (select min(workflow_name) from workflow_instance where workflow_name > found.name)
    from found
    where found.name is not null
)
select name from found where {of_authors}
