"""`python -m elastrain_trainer.agent SCRIPT ARGUMENTS`."""

from elastrain_trainer.agent.main import main

main()
