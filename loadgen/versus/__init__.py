"""Several servers of one model on one machine, by turns, with the same prompts: who is how fast."""
