select (%(row)s::public.{table}).*
