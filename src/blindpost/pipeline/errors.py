"""The one failure of the pipeline that a person can do something about."""

from __future__ import annotations


class PipelineError(Exception):
    """One message: what happened, and what to do."""
