"""The confusion matrix of the doctor: seeded faults against what it names first; as it stands in the docs.

python -m tests.e2e.confusion      run all scenarios and write the table into docs/troubleshooting.md
"""

import asyncio
from collections.abc import Mapping
from pathlib import Path

import structlog

from pipeline.doctor import Constraint, Diagnosis
from tests.e2e.scenarios import SCENARIOS, judge
from tests.unit.doctor.replays import LATE_GENERATOR, late_generator

PAGE = Path(__file__).parents[2] / "docs" / "troubleshooting.md"
BEGIN, END = "<!-- confusion matrix -->\n", "<!-- end -->\n"
NONE = "none"

EXPECTED: dict[str, Constraint | None] = {
    **{scenario.name: scenario.blames for scenario in SCENARIOS},
    LATE_GENERATOR: Constraint.GENERATOR,
}


async def judge_all() -> dict[str, Diagnosis]:
    """All scenarios, one after the other."""
    judged = {scenario.name: await judge(scenario) for scenario in SCENARIOS}
    return judged | {LATE_GENERATOR: late_generator()}


def first(diagnosis: Diagnosis) -> Constraint | None:
    return diagnosis.findings[0].constraint if diagnosis.findings else None


def table(firsts: Mapping[str, Constraint | None]) -> str:
    """Markdown: a row for each fault, a column for each thing that may be named, 1 where it is."""
    columns = [*(constraint.value for constraint in Constraint), NONE]
    letters = [chr(ord("A") + k) for k in range(len(columns))]
    lines = [
        f"| seeded fault | {' | '.join(letters)} |",
        f"|---|{'---|' * len(letters)}",
        *(
            f"| {name} | {' | '.join('1' if (blamed or NONE) == column else '.' for column in columns)} |"
            for name, blamed in firsts.items()
        ),
    ]
    key = ", ".join(f"{letter} `{column}`" for letter, column in zip(letters, columns, strict=True))
    return "\n".join([*lines, "", f"{key}.", ""])


def documented() -> str:
    """The table on the page."""
    return PAGE.read_text("utf-8").partition(BEGIN)[2].partition(END)[0]


def main() -> None:
    structlog.configure(logger_factory=structlog.ReturnLoggerFactory())
    firsts = {name: first(diagnosis) for name, diagnosis in asyncio.run(judge_all()).items()}
    before, _, rest = PAGE.read_text("utf-8").partition(BEGIN)
    PAGE.write_text(before + BEGIN + table(firsts) + END + rest.partition(END)[2], "utf-8")
    print(table(firsts))


if __name__ == "__main__":
    main()
