"""A stand-in for registries of schemas: as much of Confluent's and of Azure's HTTP interface as reading needs."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

TOKEN = "a-token"


class SchemaRegistry(ThreadingHTTPServer):
    """The registry; schemas by id, and the requests that came."""

    daemon_threads = True

    def __init__(self, schemas: dict[str, Any]) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.schemas = schemas
        self.requests: list[str] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class _Handler(BaseHTTPRequestHandler):
    server: SchemaRegistry

    def do_GET(self) -> None:
        self.server.requests.append(self.path)
        address = urlsplit(self.path)
        place, _, number = address.path.rpartition("/")
        schema = self.server.schemas.get(number)
        if schema is None or place not in ("/schemas/ids", "/$schemagroups/$schemas"):
            self._answer(404, "application/json", json.dumps({"error_code": 40403, "message": "Schema not found"}))
        elif place == "/schemas/ids":
            content = json.dumps({"schema": json.dumps(schema)})
            self._answer(200, "application/vnd.schemaregistry.v1+json", content)
        elif self.headers.get("Authorization") != f"Bearer {TOKEN}" or not address.query.startswith("api-version="):
            self._answer(401, "application/json", "{}")
        else:
            self._answer(200, "application/json; serialization=Avro", json.dumps(schema))

    def _answer(self, status: int, kind: str, text: str) -> None:
        content = text.encode()
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""


@contextmanager
def schema_registry(schemas: dict[str, Any]) -> Iterator[SchemaRegistry]:
    """A registry with some schemas."""
    with SchemaRegistry(schemas) as registry:
        thread = threading.Thread(target=registry.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        thread.start()
        try:
            yield registry
        finally:
            registry.shutdown()
            thread.join()
