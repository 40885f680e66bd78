"""The kinds of links that a server attaches clients with; others take their place where spans are asked for.

So nothing is asked, or called, for each message where there are none: the choice is made once a link.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from duobus.gateway.amqp.links.incoming_link import IncomingLink
from duobus.gateway.amqp.links.outgoing_link import OutgoingLink
from duobus.gateway.amqp.links.session_link import SessionLink


class LinkKinds(NamedTuple):
    """Classes of links.

    Attributes:
        incoming: A client sends.
        outgoing: A client receives.
        session: A client receives the messages of a session.
    """

    incoming: type[IncomingLink]
    outgoing: type[OutgoingLink]
    session: type[SessionLink]


PLAIN: Final = LinkKinds(IncomingLink, OutgoingLink, SessionLink)
