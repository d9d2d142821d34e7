"""Whether routers and services agree about which queues belong to whom."""

from __future__ import annotations

from pyspark.sql.types import BooleanType, DateType, IntegerType, LongType, StringType

from blindpost.pipeline.dataset import Dataset, Input, Kept
from blindpost.pipeline.gold.service_drift.compute import compute
from blindpost.pipeline.quality import Breaking, Rule
from blindpost.pipeline.snapshots import sums
from blindpost.pipeline.types import columns

DATASET = Dataset(
    name="service_drift",
    title="Do router and subscriber agree about the queues of each service, and if not, by how many?",
    schema=columns(
        ("day", DateType(), "The UTC day of the exports; of several, each side's last complete one counts."),
        ("router", StringType(), "The router's name."),
        ("service", IntegerType(), "Which service, numbered within day and router; the zone knows which."),
        ("role", StringType(), "By which ids: messaging (SUBS) or notifier (NSUBS)."),
        ("router_stored", LongType(), "Queues of the service in the router's state; null without export."),
        ("router_claimed", LongType(), "How many the router says there are."),
        (
            "router_agrees",
            BooleanType(),
            "Whether count and hash that the router says are those of its state.",
        ),
        ("subscriber_stored", LongType(), "Queues that the subscriber has; null without export."),
        ("subscriber_claimed", LongType(), "How many the subscriber says there are."),
        ("subscriber_agrees", BooleanType(), "Whether what the subscriber says is the router's state."),
        (
            "unassociated",
            LongType(),
            "Queues only the subscriber has, and the router knows: SUB repairs them.",
        ),
        ("gone", LongType(), "Queues only the subscriber has, and the router does not know."),
        ("unclaimed", LongType(), "Queues only the router has for this service."),
        ("lanes_sampled", LongType(), "Queues whose hash was computed again."),
        ("lanes_wrong", LongType(), "Of these, how many hashes were wrong."),
        (
            "online",
            BooleanType(),
            "Whether an export was made while the router ran: small drift is normal then.",
        ),
        ("verdict", StringType(), "agrees, drift, router's claim wrong, hashes wrong, one side only."),
        nullable=(
            "router_stored",
            "router_claimed",
            "router_agrees",
            "subscriber_stored",
            "subscriber_claimed",
            "subscriber_agrees",
            "unassociated",
            "gone",
            "unclaimed",
        ),
    ),
    key=("router", "service", "role"),
    inputs=(Input("s_queues"), Input("s_service_claims"), Input("s_snapshot")),
    compute=compute,
    kept={"summed": Kept("s_queues", sums)},
    rules=(
        Rule(
            "agrees", "verdict IN ('agrees', 'one side only')", "A drift loses messages until it is repaired."
        ),
        Rule("hashes are right", "lanes_wrong = 0", "The hashes that are summed must be those of the ids."),
        Rule(
            "differences add up",
            "subscriber_stored - router_stored = unassociated + gone - unclaimed",
            "The queues that differ must explain the difference of the counts.",
            Breaking.STOPS,
        ),
    ),
    where="in the router's trust zone, beside its exports; the result holds counts only",
    size="10 to 200 M queues of one audit, twice if the subscriber's state is at hand",
    why_spark="XOR over two lanes of 200 M rows, and an exact join of the services that differ, on all cores",
)
