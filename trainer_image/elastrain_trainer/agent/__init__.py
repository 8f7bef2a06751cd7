"""The agent: PID 1 of the trainer container, which starts torchrun round by round.

It learns of rounds from the coordinator (`client`), decides in `machine`, keeps the workers in `workers`, and
imports nothing but the standard library, so that it fits into any image that has Python.
"""
