"""The kernels, built for every instruction set that this machine can run."""

import pytest
import torch

from pipeline.gpu.host.build import Build, find_compiler
from pipeline.gpu.host.library import HostLibrary, load_library

WIDTHS = {"native": (), "avx2": ("-DSTAGELINE_AVX2",), "portable": ("-DSTAGELINE_PORTABLE",)}


@pytest.fixture(scope="session", params=WIDTHS)
def library(request: pytest.FixtureRequest) -> HostLibrary:
    assert torch.get_num_threads()  # torch's OpenMP runtime is there before the library asks for one
    return load_library(Build(find_compiler(), WIDTHS[request.param]))
