"""Model references and model files: find, fetch, read and describe them. Knows no torch and no stages."""

from pipeline.checkpoint.card import ModelCard
from pipeline.checkpoint.model import describe, load_card, rename

__all__ = ["ModelCard", "describe", "load_card", "rename"]
