"""`python -m elastrain_trainer.agent SCRIPT ARGUMENTS`."""

import signal

# Kept for later until the agent can handle them: as PID 1 it would not even be ended by them.
signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGTERM, signal.SIGINT))

from elastrain_trainer.agent.main import main  # noqa: E402

main()
