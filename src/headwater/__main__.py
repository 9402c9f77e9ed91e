"""`python -m headwater`: the command line, as processes start other processes with it."""

from headwater.gateway.cli.main import main

main()
