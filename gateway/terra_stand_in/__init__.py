"""A stand-in for Terra: a server that plays Terra's API, with people and data that are made up."""
