"""From facts to the page."""

from __future__ import annotations

from blindpost.pipeline.report import canaries, each, others, routers, unusual
from blindpost.pipeline.report.facts import Facts, count, moment
from blindpost.pipeline.report.page import Report, Section, render

SECTIONS = (
    others.data,
    routers.drift,
    canaries.integrity,
    canaries.delivery,
    routers.backlog,
    routers.storms,
    others.notifications,
    others.delivery_service,
    routers.statistics,
)


def sections(facts: Facts) -> list[Section]:
    """Every question; imports, disks, what is unusual and each router where there is something to say."""
    more = (unusual.section(facts), routers.migrations(facts), each.disks(facts), each.routers(facts))
    return [section(facts) for section in SECTIONS] + [section for section in more if section is not None]


def build(facts: Facts) -> str:
    """The report as one HTML file."""
    first, last = facts.days[0], facts.days[-1]
    return render(
        Report(
            period=first if first == last else f"{first} to {last}",
            made_at=moment(facts.made_s),
            age=routers.age(facts),
            sections=sections(facts),
            facts=(
                ("Servers", str(len(facts.heard))),
                (
                    "Read",
                    f"{count(facts.recorded, 'row')} in {count(facts.files - len(facts.quarantine), 'file')}",
                ),
                ("Set aside", count(len(facts.quarantine), "file")),
            ),
        )
    )
