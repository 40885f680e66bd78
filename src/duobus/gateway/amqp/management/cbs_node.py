"""The ``$cbs`` node: put-token (Azure: AMQP protocol guide)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from duobus.auth.authorizer import parse_audience
from duobus.broker.entities.namespace import Namespace
from duobus.codec import Int, Symbol
from duobus.errors import ArgumentInvalid, EntityNotFound, ServiceBusError, Unauthorized
from duobus.gateway.amqp.arguments import demand
from duobus.gateway.amqp.management.request_node import Request, RequestLink, RequestNode
from duobus.model.address import PATH_LENGTH_MAX, Address, not_found, parse_address

if TYPE_CHECKING:
    from duobus.gateway.amqp.links.link import Claim
    from duobus.gateway.amqp.router import LinkRouter

CBS = "$cbs"

#: Any bearer of the text; a token is far shorter.
TOKEN_LENGTH_MAX = 16_384
_NO_TOKEN = f"The body of put-token is the token, a string of {TOKEN_LENGTH_MAX} at most."
#: Whoever has no token yet may not make the server hold more than a token takes with its envelope.
REQUEST_BYTES_MAX = 65_536
#: Audiences of the node that transactions are declared at; it belongs to no entity.
_COORDINATORS = frozenset({"coordinator", "$coordinator", "transaction-coordinator"})


class CbsNode(RequestNode):
    """Takes tokens; what they allow goes to the connection's grants."""

    is_alone = True
    request_bytes_max = REQUEST_BYTES_MAX

    def needs(self, segments: tuple[str, ...]) -> tuple[Claim, ...]:
        """See RequestNode: whoever has no right yet puts a token here."""
        del segments
        return ()

    def handle(self, request: Request, link: RequestLink) -> None:
        """Answer with 202, 401, or 404 for a good token of an entity that does not exist (Azure: AMQP protocol guide).

        A missing right is refused at attach.
        """
        try:
            self._put(request)
        except EntityNotFound as missing:
            if self.peer.router.has_others:
                # Another server may have created it a moment ago.
                self.peer.spawn(self._put_again(request), request.weight)
            else:
                self._refuse(request, missing, 404)
        except ServiceBusError as error:
            self._refuse(request, error, 401)

    async def _put_again(self, request: Request) -> None:
        try:
            await self.guarded(self.peer.router.learn())
            self._put(request)
        except EntityNotFound as missing:
            self._refuse(request, missing, 404)
        except ServiceBusError as error:
            self._refuse(request, error, 401)

    def _refuse(self, request: Request, error: ServiceBusError, status: int) -> None:
        known = Unauthorized(str(error)) if status == 401 and not isinstance(error, Unauthorized) else error
        described = self.peer.error(known, CBS)
        properties: dict[str, Any] = {
            "status-code": Int(status),
            "status-description": described.description,
            "error-condition": Symbol(described.condition),
        }
        self.reply(request, properties, None)

    def _put(self, request: Request) -> None:
        operation = request.text("operation")
        if operation != "put-token":
            raise ArgumentInvalid(f"'{operation}' is no operation of $cbs. Use put-token.")
        audience = request.text("name")
        if audience is None:
            raise ArgumentInvalid("The application property 'name', the audience, is missing.")
        token = request.body.decode("utf-8", "replace") if isinstance(request.body, bytes) else request.body
        if len(demand(token, str, _NO_TOKEN)) > TOKEN_LENGTH_MAX:
            raise ArgumentInvalid(_NO_TOKEN)
        # The label in 'type' is not trusted: Python calls a shared access signature 'jwt'.
        self.peer.put_token(audience, token)
        self.reply(request, {"status-code": Int(202), "status-description": "Accepted"}, None)


def demand_entity(audience: str, home: Namespace, router: LinkRouter) -> None:
    """Raise EntityNotFound when an audience names an entity that neither this server nor another one has.

    Sub-queues and ``$management`` are there with what they belong to; so is everything for the whole namespace.
    """
    segments = parse_audience(audience).path
    if not segments or segments[-1] in _COORDINATORS:
        return
    path = "/".join(segments)
    try:
        address = parse_address(path)
    except (ArgumentInvalid, EntityNotFound):
        raise not_found(f"sb://{home.name}/{path[:PATH_LENGTH_MAX]}") from None
    if address.is_cbs or home.is_there(Address(address.path, address.subscription)) or router.knows(address):
        return
    raise not_found(f"sb://{home.name}/{path}")
