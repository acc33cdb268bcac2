"""The admin port, beside the pipeline: the live page, what feeds it, evidence and diagnosis. Not a stage."""

from pipeline.admin.server import AdminServer, beside, in_url

__all__ = ["AdminServer", "beside", "in_url"]
