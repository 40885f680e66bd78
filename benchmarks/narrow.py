"""``duobus`` with a bound that a benchmark can reach: ``python benchmarks/narrow.py serve ...``.

A fragment says busy when 50,000 messages wait for it. Whoever makes so many keeps this machine busy by that alone; with
a lower bound the same happens at a pace at which nothing else is short.
"""

import sys

from duobus.broker import fair_queue
from duobus.cli.main import main

#: Messages that may wait for one fragment here.
WAITING_MAX = 5

if __name__ == "__main__":
    fair_queue.FRAGMENT_MESSAGES_MAX = WAITING_MAX
    sys.exit(main())
