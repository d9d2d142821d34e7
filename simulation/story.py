"""A run as one reads it: what was to happen, what happened, and what was wrong with it."""

from __future__ import annotations

from simulation.run import Report
from simulation.schedules import Schedule


def story(schedule: Schedule, report: Report) -> str:
    """The schedule first, then everything that parties did and were told, in order."""
    lines = [
        f"Seed {report.seed}, with {' and '.join(schedule.cast.everybody)}; {schedule.conditions}.",
        "What was to happen:",
        *(f"  {step}" for step in schedule.steps),
        "What happened (* marks the schedule):",
        *(f"  {line}" for line in report.trace),
    ]
    return "\n".join(lines)
