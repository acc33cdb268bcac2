"""report.html, made of strings: charts are inline SVG, and the page holds all that it needs."""

from loadgen.html.page import render

__all__ = ["render"]
