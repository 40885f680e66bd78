"""A move in a transaction that is committed, the same in one that is aborted, and what the queue holds after each."""

from typing import Any

from common import GIVEN, Program, connect, failure, tell
from proton import Event, Message
from proton.handlers import TransactionHandler

connection = connect()


def rest() -> list[Any]:
    """Everything that the queue gives now."""
    receiver = connection.create_receiver(GIVEN["queue"], credit=10)
    bodies = []
    while not failure(lambda: bodies.append(receiver.receive(timeout=0.5).body))[0]:
        receiver.accept()
    receiver.close()
    return bodies


class Moves(Program, TransactionHandler):
    """Receives a message, and answers it with two others in the same transaction; commits it or aborts it."""

    def __init__(self, *, commits: bool, settles_first: bool) -> None:
        super().__init__()
        self.commits = commits
        self.settles_first = settles_first
        self.steps: list[str] = []

    def opened(self, container: Any, connection: Any) -> None:
        self.container, self.connection = container, connection
        self.sender = container.create_sender(connection, GIVEN["queue"])
        self.receiver = container.create_receiver(connection, GIVEN["queue"])
        container.declare_transaction(connection, handler=self, settle_before_discharge=self.settles_first)

    def on_transaction_declared(self, event: Event) -> None:
        self.transaction = event.transaction
        self.receiver.flow(1)

    def on_message(self, event: Event) -> None:
        # Nothing is waited for: all of it goes out in one write.
        self.transaction.accept(event.delivery)
        for number in (1, 2):
            self.transaction.send(self.sender, Message(body=f"{event.message.body} {number}"))
        if self.commits:
            self.transaction.commit()
        else:
            self.transaction.abort()

    def on_transaction_committed(self, event: Event) -> None:
        self.end("committed")

    def on_transaction_aborted(self, event: Event) -> None:
        self.end("aborted")

    def on_transaction_commit_failed(self, event: Event) -> None:
        self.end("failed")

    def on_transaction_declare_failed(self, event: Event) -> None:
        self.end("undeclared")

    def end(self, step: str) -> None:
        self.steps.append(step)
        self.connection.close()


found = {}
for name, commits, settles_first in (("commit", True, False), ("early", True, True), ("abort", False, False)):
    sender = connection.create_sender(GIVEN["queue"])
    sender.send(Message(id=name, body=name))
    sender.close()
    program = Moves(commits=commits, settles_first=settles_first)
    program.run()
    found[name] = [program.steps, rest()]
connection.close()

tell(**found)
