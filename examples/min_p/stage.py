"""The host half: the built-in sample stage, with another device half and one option.

Name it in config.toml and nothing else changes:

    [stages.sample]
    use = "examples.min_p.stage:MinPSample"
    [stages.sample.options]
    min_p = 0.1
"""

from typing import Annotated

import msgspec

from pipeline.stages.sample import Sample


class MinPOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    min_p: Annotated[float, msgspec.Meta(ge=0, le=1)] = 0.1
    """A token needs at least this share of the most probable token's probability."""


class MinPSample(Sample):
    api = 1
    Options = MinPOptions
    device_op = "examples.min_p.min_p:MinPSampling"
