"""The dead-letter desk: look through dead letters, move them, remove them, make them again."""

from duobus.broker.desk.burying import Burial, bury
from duobus.broker.desk.looking import CHUNK_MAX, Looked, Query, look
from duobus.broker.desk.moving import Desk
from duobus.broker.desk.parts import Moved, number_of
from duobus.rules.selection import Selection

__all__ = ["CHUNK_MAX", "Burial", "Desk", "Looked", "Moved", "Query", "Selection", "bury", "look", "number_of"]
