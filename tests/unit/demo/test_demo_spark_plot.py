"""The plot of rate and backlog."""

from xml.etree import ElementTree

import pytest

from duobus_demo.throughput_plot import Mark, Sample, draw, rates, round_up


def test_the_rate_is_what_was_captured_between_two_samples():
    samples = [Sample(0, 0, 100), Sample(2, 100, 50), Sample(2, 100, 50), Sample(3, 150, 0)]
    assert rates(samples) == [(2, 50.0), (3, 50.0)]


@pytest.mark.parametrize(("value", "bound"), [(0.5, 1), (1, 1), (3, 5), (7, 10), (199, 200), (201, 500)])
def test_an_axis_ends_at_a_round_number(value, bound):
    assert round_up(value) == bound


@pytest.mark.parametrize("samples", [[], [Sample(0, 0, 0)], [Sample(0, 0, 9), Sample(1.5, 9, 0)]])
def test_the_drawing_is_well_formed_with_much_or_nothing(samples):
    root = ElementTree.fromstring(draw("a < b & c", samples, [Mark(1.0, "killed <here>")]))
    texts = ["".join(text.itertext()) for text in root.iter("{http://www.w3.org/2000/svg}text")]
    assert "a < b & c" in texts
    assert texts.count("killed <here>") == 2
