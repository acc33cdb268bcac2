"""examples/offline.py with a runner that costs STEP_S a step, as a program that can be killed."""

import sys
import time

from examples import offline
from pipeline.checkpoint.fake import byte_card
from pipeline.config import Config
from pipeline.embedded import Engine
from pipeline.messages import StepPlan
from pipeline.runtime.bridge import RunnerFactory
from pipeline.runtime.testing import FakeRunner

STEP_S = 0.004


def slow_engine(config: Config) -> Engine:
    return Engine(
        config, byte_card(), RunnerFactory(lambda: FakeRunner(before_step=lambda _: time.sleep(STEP_S)))
    )


def fast_engine(config: Config) -> Engine:
    return Engine(config, byte_card(), RunnerFactory(FakeRunner))


def failing_engine(config: Config) -> Engine:
    """Its 40th step fails."""

    def fail(plan: StepPlan) -> None:
        if plan.step_id == 40:
            raise RuntimeError("the device burns")

    return Engine(config, byte_card(), RunnerFactory(lambda: FakeRunner(before_step=fail)))


if __name__ == "__main__":
    sys.exit(offline.main(sys.argv[1:], slow_engine))
