"""Claims under faults in virtual time: ``scenario`` plays, ``history`` checks, ``mutants`` are the planted bugs."""

from simulation.scenarios.claims.mutants import BUGS
from simulation.scenarios.claims.scenario import run

__all__ = ["BUGS", "run"]
