"""Every example of the page about testing is run as it stands, in a thread and in a process."""

from __future__ import annotations

import re
from importlib.metadata import entry_points
from pathlib import Path

import pytest

PAGE = Path(__file__).resolve().parents[3] / "docs" / "how-to" / "test-your-application.md"
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
EXAMPLES = [text for kind, text in BLOCKS if kind == "python"]

#: Loads the plugin where the installed package does not announce it.
PLUGIN = () if entry_points(group="pytest11", name="duobus") else ("-p", "duobus.testing.plugin")

pytest_plugins = ["pytester"]


@pytest.mark.parametrize("options", [(), ("--duobus-process",)], ids=["thread", "process"])
def test_every_example_of_the_page_passes(pytester: pytest.Pytester, options: tuple[str, ...]) -> None:
    pytester.makepyfile(**{f"test_example_{index}": text for index, text in enumerate(EXAMPLES)})

    result = pytester.runpytest_subprocess(*PLUGIN, "-p", "no:cacheprovider", *options, timeout=60)

    result.assert_outcomes(passed=sum(text.count("\ndef test_") + text.startswith("def test_") for text in EXAMPLES))


def test_the_setting_of_the_page_takes_the_short_names_away(pytester: pytest.Pytester) -> None:
    (setting,) = [text for kind, text in BLOCKS if kind == "ini"]
    pytester.makeini(setting)
    pytester.makepyfile(EXAMPLES[0])

    result = pytester.runpytest_subprocess(*PLUGIN, "-p", "no:cacheprovider", timeout=60)

    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*fixture 'namespace' not found*"])
