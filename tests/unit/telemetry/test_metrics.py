"""Metrics: one table, read at scrape time."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from prometheus_client.parser import text_string_to_metric_families

from duobus.errors import InternalError
from duobus.telemetry.metrics import HISTOGRAM, METRICS, SAMPLES_AT_ONCE, Metrics, Sample


def rendered(metrics: Metrics, slices: list[int] | None = None) -> bytes:
    """The page; ``slices`` gets how much was done between two turns of others."""

    async def spend(number: int) -> None:
        if slices is not None:
            slices.append(number)

    return asyncio.run(metrics.render(spend))


def _every_sample() -> list[Sample]:
    return [
        Sample(
            metric.name,
            tuple(f"{label}-1" for label in metric.labels),
            7,
            [(0.001, 1), (float("inf"), 3)] if metric.kind == HISTOGRAM else None,
        )
        for metric in METRICS
    ]


def test_every_metric_of_the_table_appears_on_the_page() -> None:
    page = rendered(Metrics(_every_sample)).decode()
    found = {family.name for family in text_string_to_metric_families(page)}
    assert found == {metric.name for metric in METRICS}


def test_samples_keep_their_labels_and_values() -> None:
    page = rendered(Metrics(lambda: [Sample("duobus_messages", ('n"1', "q\n", "active"), 3)])).decode()
    (family,) = text_string_to_metric_families(page)
    (sample,) = family.samples
    assert sample.labels == {"namespace": 'n"1', "entity": "q\n", "state": "active"}
    assert sample.value == 3


def test_a_histogram_has_buckets_sum_and_count() -> None:
    samples = [Sample("duobus_store_commit_seconds", ("0",), 0.5, [(0.001, 1), (0.01, 2), (float("inf"), 3)])]
    page = rendered(Metrics(lambda: samples)).decode()
    assert 'duobus_store_commit_seconds_bucket{le="0.01",store="0"} 2.0' in page
    assert 'duobus_store_commit_seconds_bucket{le="+Inf",store="0"} 3.0' in page
    assert 'duobus_store_commit_seconds_count{store="0"} 3.0' in page
    assert 'duobus_store_commit_seconds_sum{store="0"} 0.5' in page


def test_numbers_are_read_when_the_page_is_asked_for_and_not_before() -> None:
    reads = []

    def read() -> list[Sample]:
        reads.append(1)
        return [Sample("duobus_errors", ("amqp:not-found",), len(reads))]

    metrics = Metrics(read)
    assert reads == []
    assert b'duobus_errors_total{condition="amqp:not-found"} 1.0' in rendered(metrics)
    assert b'duobus_errors_total{condition="amqp:not-found"} 2.0' in rendered(metrics)


def test_metrics_without_a_sample_are_left_out() -> None:
    assert rendered(Metrics(list)).strip() == b""


@pytest.mark.parametrize("sample", [Sample("duobus_unknown", (), 1), Sample("duobus_errors", (), 1)])
def test_a_sample_that_fits_no_row_is_refused(sample: Sample) -> None:
    with pytest.raises(InternalError, match="table"):
        rendered(Metrics(lambda: [sample]))


def test_many_samples_are_read_and_rendered_in_slices_and_the_page_is_as_if_they_were_not() -> None:
    number = 20 * SAMPLES_AT_ONCE + 7

    def samples() -> Iterator[Sample]:
        for index in range(number):
            yield Sample("duobus_messages_bytes", ("n", f"q{index}"), index)
        yield Sample("duobus_errors", ("amqp:not-found",), 1)

    slices: list[int] = []
    page = rendered(Metrics(samples), slices).decode()
    assert max(slices) <= SAMPLES_AT_ONCE
    assert sum(slices) >= 2 * number - SAMPLES_AT_ONCE
    assert page.count("# HELP duobus_messages_bytes ") == page.count("# TYPE duobus_messages_bytes ") == 1
    families = {family.name: family for family in text_string_to_metric_families(page)}
    found = [(sample.labels["entity"], sample.value) for sample in families["duobus_messages_bytes"].samples]
    assert found == [(f"q{index}", index) for index in range(number)]


def test_names_say_their_unit_and_have_help() -> None:
    names = [metric.name for metric in METRICS]
    assert len(set(names)) == len(names)
    for metric in METRICS:
        assert metric.name.startswith("duobus_")
        assert metric.help.endswith(".")
