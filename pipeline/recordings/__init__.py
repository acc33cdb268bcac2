"""Recordings of a running pipeline: which links there are to record, and those under way."""
