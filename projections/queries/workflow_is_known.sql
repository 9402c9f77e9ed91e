-- Whether a workflow is one: an owner has or had its code, it is deployed, there are instances of
-- it, or it comes with Headwater.
select exists (select from ({declared}) as found where name = %(name)s)
    or exists (select from workflow_owner where %(name)s = any (known))
    or exists (select from deployment where %(name)s = any (workflows))
    or exists (select from graph_definition where name = %(name)s)
    or exists (select from workflow_instance where workflow_name = %(name)s)
    or exists (select from (values (%(name)s::text)) as asked (name) where not ({of_authors}))
    as known
