"""A load generator that replays production traces; it imports nothing of `pipeline`."""
