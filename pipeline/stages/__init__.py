"""Thin actors around `pipeline.core`. None imports another; topology says how they are linked."""
