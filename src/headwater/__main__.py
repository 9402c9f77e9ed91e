"""`python -m headwater`: the command line, as processes start each other with it."""

from headwater.gateway.cli.main import main

main()
