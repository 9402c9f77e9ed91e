"""The edge: HTTP routes, the command line, and the composition root that joins the rooms."""
