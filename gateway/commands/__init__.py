"""Commands of the command line, by what they act on."""
