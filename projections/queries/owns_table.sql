-- Whether this login may alter a table.
select pg_has_role(relowner, 'usage')
from pg_class
where oid = to_regclass(quote_ident(%(name)s))
