"""Compare: two classes for one place of the graph, on the same input: do they answer the same, and how fast?

`answers` hears all that both give, in a pass that is not timed; `rounds` times them by turns; `ratio` says
how sure that is.
"""
