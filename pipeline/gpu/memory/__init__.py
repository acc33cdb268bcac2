"""How much memory there is, and what a server makes of it."""
