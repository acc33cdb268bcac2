"""Fixtures of the whole suite: the real model, fetched once into the user's cache."""

import os
from pathlib import Path

import pytest

from pipeline.checkpoint.card import ModelCard
from pipeline.checkpoint.fake import byte_card
from pipeline.checkpoint.model import describe
from pipeline.checkpoint.reference import DEFAULT_REFERENCE
from pipeline.checkpoint.store import resolve


@pytest.fixture(scope="session")
def model_reference() -> str:
    """The default model, or the one that STAGELINE_MODEL names."""
    return os.environ.get("STAGELINE_MODEL") or DEFAULT_REFERENCE


@pytest.fixture(scope="session")
def model_path(model_reference: str) -> Path:
    return resolve(model_reference)


@pytest.fixture(scope="session")
def model_card(model_reference: str, model_path: Path) -> ModelCard:
    return describe(model_path, model_reference)


@pytest.fixture(scope="session")
def fake_card() -> ModelCard:
    """A byte-level tokenizer and no weights: what FakeRunner serves."""
    return byte_card()
