"""A job as processes on this machine: the planner and the coordinator of the cluster, with local processes as pods."""

from elastrain.local.run import Run

__all__ = ["Run"]
