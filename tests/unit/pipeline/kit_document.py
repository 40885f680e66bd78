"""Documents of pipelines for tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from duobus.pipeline.document.model import DocumentError, Pipeline
from duobus.pipeline.document.parser import read_document

#: A document with everything that the demonstration has: from a queue over a table to a report and to alerts.
SHOP = """\
name = "shop"
state = "state"

[connections.shop]
connectionStringEnv = "SHOP_BUS"

[sources.incoming]
queue = "orders"
maxMessagesPerTrigger = 500

[tables.orders]
path = "lake/orders"

[tables.totals]
path = "lake/totals"
columns = "customer string, total bigint"

[views.customer_totals]
sql = "select subject as customer, count(*) as total from orders group by 1"

[views.large]
python = "rules:large"
from = "totals"

[sinks.alerts]
topic = "alerts"

[stages.capture]
from = "incoming"
to = "orders"
trigger = "10s"

[stages.totals]
from = "customer_totals"
to = "totals"
after = "capture"

[stages.alert]
from = "large"
to = "alerts"
after = "totals"
"""

RULES = "def large(totals):\n    return totals.where('total > 9')\n"


def document(folder: Path, text: str = SHOP) -> Path:
    """Write a document and its module of Python."""
    (folder / "rules.py").write_text(RULES)
    path = folder / "shop.toml"
    path.write_text(text)
    return path


def parsed(folder: Path, text: str = SHOP) -> Pipeline:
    """A document that has no fault."""
    return read_document(document(folder, text))


def faults(folder: Path, *changes: tuple[str, str]) -> list[str]:
    """What is told of the shop's document after some changes of its text, a line for each fault."""
    text = SHOP
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    with pytest.raises(DocumentError) as refused:
        parsed(folder, text)
    return str(refused.value).splitlines()
