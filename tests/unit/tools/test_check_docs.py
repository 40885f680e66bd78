"""The checker of the documentation finds what it is there to find."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import click
import pytest


def _load() -> ModuleType:
    path = Path(__file__).resolve().parents[3] / "tools" / "check_docs.py"
    spec = importlib.util.spec_from_file_location("check_docs", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


check_docs = _load()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for folder in ("docs/reference", "docs/decisions"):
        (tmp_path / folder).mkdir(parents=True)
    return tmp_path


def test_links_that_lead_somewhere_are_no_fault(root: Path) -> None:
    (root / "README.md").write_text(
        "[a](docs/a.md) [b](docs/a.md#two-words) [c](#top) [d](https://example.com/x) [e](docs)\n# Top\n"
    )
    (root / "docs/a.md").write_text(
        "# One\n## `Two` words!\n```\n[x](nowhere)\n```\n`[y](nowhere)` [up](../README.md)\n"
    )
    assert list(check_docs.check_links(root)) == []


@pytest.mark.parametrize("link", ["docs/missing.md", "docs/a.md#missing", "#missing"])
def test_a_link_that_leads_nowhere_is_named(root: Path, link: str) -> None:
    (root / "docs/a.md").write_text("# One\n")
    (root / "README.md").write_text(f"[text]({link})\n")
    (fault,) = check_docs.check_links(root)
    assert fault.startswith("README.md")
    assert link in fault


def test_an_option_that_is_only_part_of_another_counts_as_missing(root: Path) -> None:
    (root / "docs/reference/cli.md").write_text("`--tls-port` and `--stores`\n")
    faults = list(check_docs.check_reference(root, ["--stores", "--port", "--tls"], "option"))
    assert len(faults) == 2
    assert "--port" in faults[0]
    assert "--tls" in faults[1]


def test_decisions_are_numbered_without_gaps_and_doubles(root: Path) -> None:
    for name, title in (
        ("0001-a.md", "# 0001 A"),
        ("0003-b.md", "# 0003 B"),
        ("0003-c.md", "# 0004 C"),
        ("d.md", "# D"),
    ):
        (root / "docs/decisions" / name).write_text(title + "\n")
    listed = "".join(f"[{name}](decisions/{name})" for name in ("0001-a.md", "0003-b.md", "0003-c.md"))
    (root / "docs/README.md").write_text(listed)
    faults = "\n".join(check_docs.check_decisions(root))
    for part in ("0003-c.md: the title", "d.md: the name", "0002 is missing", "0003 is given twice"):
        assert part in faults
    assert faults.count("\n") == 3


def test_a_decision_has_to_be_listed(root: Path) -> None:
    (root / "docs/decisions/0001-a.md").write_text("# 0001 A\n")
    (root / "docs/decisions/0002-b.md").write_text("# 0002 B\n")
    (root / "docs/README.md").write_text("[0002 B](decisions/0002-b.md)")
    faults = list(check_docs.check_listed(root))
    assert "docs/decisions/0001-a.md: docs/README.md does not list it" in faults
    assert not any("0002-b.md" in fault for fault in faults)


def test_a_decision_is_listed_under_its_own_title(root: Path) -> None:
    (root / "docs/decisions/0001-a.md").write_text("# 0001 The store syncs\n")
    (root / "docs/decisions/0002-b.md").write_text("# 0002 The broker waits\n")
    (root / "docs/README.md").write_text(
        "- [0001 The store syncs](decisions/0001-a.md)\n- [0002 Waiting](decisions/0002-b.md)\n"
    )
    (fault,) = check_docs.check_titles(root)
    assert fault == "docs/decisions/0002-b.md: docs/README.md lists it under another title"


def test_every_page_has_to_be_listed_and_a_name_in_code_is_no_link(root: Path) -> None:
    (root / "docs/tutorial").mkdir()
    (root / "docs/tutorial/listed.md").write_text("# Listed\n")
    (root / "docs/tutorial/forgotten.md").write_text("# Forgotten\n")
    (root / "docs/README.md").write_text(
        "[Listed](tutorial/listed.md#listed) and `[Forgotten](tutorial/forgotten.md)`\n"
    )
    faults = list(check_docs.check_listed(root))
    assert "docs/tutorial/forgotten.md: docs/README.md does not list it" in faults
    assert not any("tutorial/listed.md" in fault for fault in faults)


def test_options_of_sub_commands_are_found_and_hidden_ones_not() -> None:
    @click.group()
    @click.option("--top")
    def group() -> None: ...

    @group.command()
    @click.option("--on/--off")
    @click.option("--secret", hidden=True)
    def child() -> None: ...

    assert check_docs.option_names(group, click.Context(group)) == {"--top", "--on", "--off"}
