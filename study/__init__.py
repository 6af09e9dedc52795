"""Where and when: points, submission, SLURM, ledger, tracking, planning, the command line."""

from study import namesakes

__version__ = "0.1.0"

namesakes.refuse()
