"""The dead-letter service: look through dead letters, move them, remove them, make them again."""

from duobus.broker.dead_letters.restore import DeadLetterRestore, restore
from duobus.broker.dead_letters.results import MoveResult, number_of
from duobus.broker.dead_letters.search import DeadLetterQuery, SearchPage, search
from duobus.broker.dead_letters.service import DeadLetterService
from duobus.rules.selection import Selection

__all__ = [
    "DeadLetterRestore",
    "DeadLetterService",
    "SearchPage",
    "MoveResult",
    "DeadLetterQuery",
    "Selection",
    "restore",
    "search",
    "number_of",
]
