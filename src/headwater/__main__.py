"""`python -m headwater`: the command line, for a part that starts another."""

from headwater.gateway.cli import main

main()
