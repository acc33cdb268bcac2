"""Launches of each kernel over random inputs, to be checked against plain torch, timed and tuned."""
