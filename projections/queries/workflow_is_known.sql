-- Whether a workflow exists: an owner has or had its code, it is deployed, it has instances, or it
-- is built in.
select exists (select from ({declared}) as declared where name = %(name)s)
    or exists (select from workflow_owner where %(name)s = any (known))
    or exists (select from deployment where %(name)s = any (workflows))
    or exists (select from graph_definition where name = %(name)s)
    or exists (select from workflow_instance where workflow_name = %(name)s)
    or exists (select from (values (%(name)s::text)) as requested (name) where not ({of_authors}))
    as known
