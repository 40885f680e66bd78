"""Metrics: one table, read at scrape time."""

from __future__ import annotations

import pytest
from prometheus_client.parser import text_string_to_metric_families

from duobus.errors import InternalError
from duobus.telemetry.metrics import HISTOGRAM, METRICS, Metrics, Sample


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
    page = Metrics(_every_sample).render().decode()
    found = {family.name for family in text_string_to_metric_families(page)}
    assert found == {metric.name for metric in METRICS}


def test_samples_keep_their_labels_and_values() -> None:
    page = Metrics(lambda: [Sample("duobus_messages", ('n"1', "q\n", "active"), 3)]).render().decode()
    (family,) = text_string_to_metric_families(page)
    (sample,) = family.samples
    assert sample.labels == {"namespace": 'n"1', "entity": "q\n", "state": "active"}
    assert sample.value == 3


def test_a_histogram_has_buckets_sum_and_count() -> None:
    samples = [Sample("duobus_store_commit_seconds", ("0",), 0.5, [(0.001, 1), (0.01, 2), (float("inf"), 3)])]
    page = Metrics(lambda: samples).render().decode()
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
    assert b'duobus_errors_total{condition="amqp:not-found"} 1.0' in metrics.render()
    assert b'duobus_errors_total{condition="amqp:not-found"} 2.0' in metrics.render()


def test_metrics_without_a_sample_are_left_out() -> None:
    assert Metrics(list).render().strip() == b""


@pytest.mark.parametrize("sample", [Sample("duobus_unknown", (), 1), Sample("duobus_errors", (), 1)])
def test_a_sample_that_fits_no_row_is_refused(sample: Sample) -> None:
    with pytest.raises(InternalError, match="table"):
        Metrics(lambda: [sample]).render()


def test_names_say_their_unit_and_have_help() -> None:
    names = [metric.name for metric in METRICS]
    assert len(set(names)) == len(names)
    for metric in METRICS:
        assert metric.name.startswith("duobus_")
        assert metric.help.endswith(".")
