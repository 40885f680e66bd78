"""The hint about a Python that was compiled without optimizations."""

from __future__ import annotations

from tools.python_build import HINT, hint_for


def test_a_python_that_pyenv_compiled_plainly_gets_the_hint() -> None:
    assert hint_for("/home/ann/.pyenv/versions/3.11.7", "'--enable-shared'") == HINT


def test_a_python_that_pyenv_compiled_with_optimizations_gets_none() -> None:
    assert hint_for("/home/ann/.pyenv/versions/3.12.1", "'--enable-optimizations' '--with-lto'") is None


def test_a_distribution_that_does_not_name_its_optimizations_gets_none() -> None:
    assert hint_for("/usr", "'--enable-shared' '--prefix=/usr'") is None
