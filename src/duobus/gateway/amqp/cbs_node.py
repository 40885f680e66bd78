"""The ``$cbs`` node: put-token (contract chapter 4)."""

from __future__ import annotations

from typing import Any

from duobus.codec import Int, Symbol
from duobus.errors import ArgumentInvalid, ServiceBusError, Unauthorized
from duobus.gateway.amqp.request_node import Request, RequestLink, RequestNode

CBS = "$cbs"

#: Any bearer of the text; a token is far shorter.
TOKEN_LENGTH_MAX = 16_384
#: Whoever has no token yet may not make the server hold more than a token takes with its envelope.
REQUEST_BYTES_MAX = 65_536


class CbsNode(RequestNode):
    """Takes tokens; what they allow goes to the connection's grants."""

    def handle(self, request: Request, link: RequestLink) -> None:
        """Answer with 202 or 401 only (contract 4.4): a missing entity or right is refused at attach."""
        try:
            self._put(request)
        except ServiceBusError as error:
            known = error if isinstance(error, Unauthorized) else Unauthorized(str(error))
            described = self.peer.error(known, CBS)
            properties: dict[str, Any] = {
                "status-code": Int(401),
                "status-description": described.description,
                "error-condition": Symbol(described.condition),
            }
        else:
            properties = {"status-code": Int(202), "status-description": "Accepted"}
        self.reply(request, properties, None)

    def _put(self, request: Request) -> None:
        operation = request.text("operation")
        if operation != "put-token":
            raise ArgumentInvalid(f"'{operation}' is no operation of $cbs. Use put-token.")
        audience = request.text("name")
        if audience is None:
            raise ArgumentInvalid("The application property 'name', the audience, is missing.")
        token = request.body.decode("utf-8", "replace") if isinstance(request.body, bytes) else request.body
        if not isinstance(token, str) or len(token) > TOKEN_LENGTH_MAX:
            raise ArgumentInvalid(f"The body of put-token is the token, a string of {TOKEN_LENGTH_MAX} at most.")
        # The label in 'type' is not trusted: Python calls a shared access signature 'jwt' (contract 0.18).
        self.peer.put_token(audience, token)
