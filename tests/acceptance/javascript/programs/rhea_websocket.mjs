// Contract 1.4: the path and the sub-protocol that a plain client asks for over a WebSocket.

import { once } from "node:events";

import rhea from "rhea";
import { WebSocket } from "ws";

import { leave, receive, receiver, sendAll } from "./rhea_common.mjs";
import { given, tell } from "./common.mjs";

let socket;
class Watched extends WebSocket {
  constructor(...wanted) {
    super(...wanted);
    socket = this;
  }
}

const container = rhea.create_container();
const connection = container.connect({
  connection_details: container.websocket_connect(Watched)(`ws://localhost:${given.http}${given.path}`, given.protocol),
  username: given.username,
  password: given.password,
  reconnect: false,
});
await once(connection, "connection_open");
const accepted = await sendAll(connection, given.queue, [{ body: "over a socket of the web" }]);
const [{ message, delivery }] = await receive(receiver(connection, given.queue), 1);
delivery.accept();
await leave(connection);

tell({ accepted, body: message.body, protocol: socket.protocol });
