"""How batches reach their entity, without a broker."""

from __future__ import annotations

from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage, ServiceBusMessageBatch
from azure.servicebus import exceptions as sdk
from azure.servicebus.amqp import AmqpAnnotatedMessage

from duobus.spark.jobs.job import cause_of
from duobus.spark.retry import RateLimit
from duobus.spark.sink.sender import HEADROOM_BYTES, OpenBatch, Post, Refused, SendFailed


def message(name: str, size: int = 1) -> AmqpAnnotatedMessage:
    return AmqpAnnotatedMessage(data_body=b"x" * size, properties={"message_id": name})


class Sender:
    """Refuses batches of more than ``most``, messages named bad, and everything while ``error`` is set."""

    _max_message_size_on_link = 1_048_576

    def __init__(self) -> None:
        self.most = 1_000
        self.error: Exception | None = None
        self.sends: list[list[str]] = []

    def create_message_batch(self, size: int | None = None) -> ServiceBusMessageBatch:
        return ServiceBusMessageBatch(size or 262_144)

    def send_messages(self, what: Any) -> None:
        if self.error is not None:
            raise self.error
        messages = list(what._messages) if isinstance(what, ServiceBusMessageBatch) else [what]
        names = [
            one.message_id if isinstance(one, ServiceBusMessage) else one.properties.message_id for one in messages
        ]
        if len(names) > self.most or "bad" in names:
            raise sdk.ServiceBusError("refused", condition=b"amqp:not-allowed")
        self.sends.append(names)


def posted(sender: Sender) -> tuple[Post, list[str]]:
    forgotten: list[str] = []
    return Post(lambda _: sender, forgotten.append), forgotten  # type: ignore[arg-type, return-value]


def batch(post: Post, *names: str, key: str | None = None) -> OpenBatch:
    made = post.make(("q", key))
    for name in names:
        assert made.add(message(name))
    return made


def test_a_batch_leaves_room_below_the_limit_of_the_link() -> None:
    post, _ = posted(Sender())
    assert post.make(("q", None)).whole.max_size_in_bytes == 262_144 - HEADROOM_BYTES


def test_a_batch_that_is_refused_goes_singly_and_the_bad_one_is_named() -> None:
    sender = Sender()
    post, _ = posted(sender)
    with pytest.raises(Refused, match="refuses the message 'bad'") as told:
        post.send(("q", None), batch(post, "a", "bad", "b", "c"))
    assert sender.sends == [["a"]]
    assert [one.properties.message_id for one in told.value.left if one.properties] == ["b", "c"]


def test_an_entity_that_takes_messages_singly_is_not_asked_again() -> None:
    sender = Sender()
    sender.most = 1
    post, _ = posted(sender)
    post.send(("q", None), batch(post, "a", "b"))
    sender.most = 2
    post.send(("q", None), batch(post, "c", "d"))
    post.send(("q", "key"), batch(post, "e", "f", key="key"))
    assert sender.sends == [["a"], ["b"], ["c"], ["d"], ["e", "f"]]
    assert (post.messages, post.requests) == (6, 5)


@pytest.mark.parametrize(
    "error",
    [
        sdk.ServiceBusServerBusyError(message="busy"),
        sdk.MessagingEntityNotFoundError(message="missing"),
        sdk.ServiceBusQuotaExceededError(message="full"),
        sdk.ServiceBusConnectionError(message="away"),
        OSError("broken pipe"),
        sdk.ServiceBusAuthenticationError(),
        sdk.ServiceBusError("new", condition=b"com.example:new"),
        ValueError("The handler has already been shutdown."),
        RuntimeError("a bug"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_what_concerns_the_whole_entity_fails_the_task_at_once(error: Exception) -> None:
    sender = Sender()
    post, forgotten = posted(sender)
    made = batch(post, "a", "b")
    sender.error = error
    with pytest.raises(SendFailed, match="2 messages could not be sent to 'q'") as told:
        post.send(("q", None), made)
    assert len(told.value.left) == 2
    assert forgotten == ["q"]


def test_a_message_larger_than_a_batch_goes_by_itself_if_the_link_takes_it() -> None:
    sender = Sender()
    post, _ = posted(sender)
    made = post.make(("q", None))
    large = message("large", 500_000)
    assert not made.add(large)
    assert post.send_single("q", large)
    assert not post.send_single("q", message("larger", 1_048_000))
    assert sender.sends == [["large"]]


def test_a_rate_holds_up_who_sent_too_much_and_does_not_make_up_for_idle_times() -> None:
    class Still:
        now = 0

        def now_ms(self) -> int:
            return self.now

        monotonic_ms = now_ms

    clock, waited = Still(), []
    pace = RateLimit(100, clock, waited.append)  # type: ignore[arg-type]
    pace.sent(50)
    pace.sent(50)
    clock.now = 60_000
    pace.sent(10)
    assert waited == [0.5, 1.0, 0.1]


def test_the_cause_of_an_error_of_spark_is_what_python_raised() -> None:
    text = """[STREAM_FAILED] Query [id = 6b1d] terminated with exception: Job aborted due to stage failure.
org.apache.spark.api.python.PythonException: Traceback (most recent call last):
  File "/x/sink.py", line 218, in write
    return write_rows(batches)
duobus.spark.sink.sender.SendFailed: 2 messages could not be sent to 'q': MessagingEntityNotFoundError: gone
 SQLSTATE: XXKST
	at org.apache.spark.sql.execution.StreamExecution.run(StreamExecution.scala:1)
"""
    assert cause_of(RuntimeError(text)) == "2 messages could not be sent to 'q': MessagingEntityNotFoundError: gone"


def test_the_cause_of_an_error_without_python_is_its_cause_of() -> None:
    assert (
        cause_of(RuntimeError("[PATH_NOT_FOUND] Path does not exist.\n\tat x"))
        == "[PATH_NOT_FOUND] Path does not exist."
    )


def test_the_cause_of_an_error_in_a_function_for_batches_is_what_java_threw() -> None:
    """It was told as 'An error occurred while calling o142.parquet.', which helps nobody."""
    text = """[STREAM_FAILED] Query [id = 6b1d] terminated with exception: An exception was raised by the Python Proxy.
Caused by: py4j.Py4JException: An exception was raised by the Python Proxy. Return Message: Traceback:
  File "/x/capture.py", line 183, in write_batch
    raise Py4JJavaError(
py4j.protocol.Py4JJavaError: An error occurred while calling o142.parquet.
: org.apache.hadoop.fs.ParentNotDirectoryException: Parent path is not a directory: file:/data/in-the-way
	at org.apache.hadoop.fs.RawLocalFileSystem.mkdirs(RawLocalFileSystem.java:873)
	at py4j.Gateway.invoke(Gateway.java:282)
"""
    assert cause_of(RuntimeError(text)) == "Parent path is not a directory: file:/data/in-the-way"


def test_the_cause_of_a_task_that_failed_in_a_function_for_batches_is_what_python_raised_in_it() -> None:
    text = """py4j.protocol.Py4JJavaError: An error occurred while calling o142.parquet.
: org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 in stage 3.0 failed 1 times
Caused by: org.apache.spark.api.python.PythonException: Traceback (most recent call last):
  File "/x/tasks.py", line 105, in _tell_loss
duobus.spark.errors.DataLoss: 2 claimed messages of 'q' are gone
	at org.apache.spark.api.python.BasePythonRunner.compute(PythonRunner.scala:1)
"""
    assert cause_of(RuntimeError(text)) == "2 claimed messages of 'q' are gone"
