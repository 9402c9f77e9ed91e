select attname, format_type(atttypid, atttypmod)
from pg_attribute
where attrelid = to_regclass(quote_ident(%(name)s))
  and attnum > 0
  and not attisdropped
