"""Golden messages as the planner's values, written out by hand."""

from __future__ import annotations

from elastrain.planning import Endpoint, Member, Outcome, Round

UID = "0d5e7d0c-6a3b-4f53-9d6e-5f0c7b1a2e11"

FIRST = Round(
    number=1,
    reason="Started",
    rendezvous_id=f"{UID}-1",
    processes_per_node=1,
    members=(Member("sft-0-0", "10.0.1.7", joining=True), Member("sft-1-0", "10.0.2.8", joining=True)),
    rendezvous=Endpoint("sft-0-0.sft.default.svc", 41231),
    store=Endpoint("sft-0-0.sft.default.svc", 41232),
)
AFTER_FAILURE = Round(
    number=3,
    reason="WorkerFailed",
    rendezvous_id=f"{UID}-3",
    processes_per_node=1,
    members=(Member("sft-0-0", "10.0.1.7", joining=True), Member("sft-1-1", "10.0.2.9", joining=True)),
    rendezvous=Endpoint("sft-0-0.sft.default.svc", 41233),
    store=Endpoint("sft-0-0.sft.default.svc", 41234),
)
WITH_NEWCOMERS = Round(
    number=4,
    reason="Scaled",
    rendezvous_id=f"{UID}-4",
    processes_per_node=8,
    members=(
        Member("sft-0-0", "10.0.1.7", joining=False),
        Member("sft-1-1", "10.0.2.9", joining=False),
        Member("sft-2-0", "10.0.3.4", joining=True),
        Member("sft-3-0", "fd00::1:4", joining=True),
    ),
    rendezvous=Endpoint("sft-2-0.sft.default.svc", 39001),
    store=Endpoint("sft-0-0.sft.default.svc", 41236),
)
COMPLETE = Outcome(complete=True, message="all workers of round 3 ended with exit code 0")
FAILED = Outcome(complete=False, message="pod sft-1-1, rank 1: exit code 1: ValueError: loss is NaN")
LEAVE = "spec.nodes is 2: this pod is no longer wanted"
