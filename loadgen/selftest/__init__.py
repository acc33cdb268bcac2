"""How much this generator sustains on this machine, measured against a server that costs nothing."""
