"""The reference of bearer tokens names every member of their file, with its default, and no other."""

from __future__ import annotations

import json
import re
from pathlib import Path

import msgspec
import pytest

from duobus.model.options import TokenClient, TokenEndpointOptions, TokenOptions, TrustedIssuer
from duobus.server.access.token_file import read_token_file

DOCS = Path(__file__).resolve().parents[3] / "docs"
WRITTEN_AS = {(): "empty", None: "none", msgspec.NODEFAULT: "needed"}


@pytest.mark.parametrize(
    ("heading", "kind"),
    [
        ("The file", TokenOptions),
        ("Issuers", TrustedIssuer),
        ("Endpoint", TokenEndpointOptions),
        ("Clients", TokenClient),
    ],
)
def test_every_member_of_the_file_stands_there_with_its_default(heading: str, kind: type[msgspec.Struct]) -> None:
    page = (DOCS / "reference" / "bearer-tokens.md").read_text()
    section = re.split(r"^#", page.split(f"# {heading}\n", 1)[1], maxsplit=1, flags=re.MULTILINE)[0]
    rows = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in section.splitlines() if "| `" in line]
    written = {row[0].strip("` "): row[2].strip("`") for row in rows}
    fields = msgspec.structs.fields(kind)
    assert written == {field.encode_name: WRITTEN_AS.get(field.default, str(field.default)) for field in fields}


def test_the_files_of_the_guide_are_taken(tmp_path: Path) -> None:
    page = (DOCS / "how-to" / "bearer-tokens.md").read_text()
    blocks = re.findall(r"```json\n(.*?)```", page, re.DOTALL)
    assert len(blocks) == 2
    for block in blocks:
        path = tmp_path / "tokens.json"
        path.write_text(json.dumps(json.loads(block)))
        read_token_file(path)
