"""The dead-letter desk: look through dead letters, move them, remove them, make them again."""

from duobus.broker.dead_letters.restore import Burial, bury
from duobus.broker.dead_letters.results import Moved, number_of
from duobus.broker.dead_letters.search import CHUNK_MAX, Looked, Query, look
from duobus.broker.dead_letters.service import Desk
from duobus.rules.selection import Selection

__all__ = ["CHUNK_MAX", "Burial", "Desk", "Looked", "Moved", "Query", "Selection", "bury", "look", "number_of"]
