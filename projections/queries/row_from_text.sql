select (%(row)s::headwater.{table}).*
