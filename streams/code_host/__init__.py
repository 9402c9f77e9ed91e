"""Where authors' code runs: the host of code workflows, and what authors hold in their hands."""
