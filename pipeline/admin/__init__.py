"""The admin port, beside the pipeline: the live page, what feeds it, evidence and diagnosis. Not a stage."""
