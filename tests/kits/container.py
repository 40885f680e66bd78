"""What deploy/ says of the container: the Dockerfile's instructions and the compose file, read as their programs do."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import yaml

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
DOCKERFILE = DEPLOY / "Dockerfile"
ENTRYPOINT = DEPLOY / "entrypoint.sh"
COMPOSE = DEPLOY / "compose.yaml"

#: The compose file in the emulator's documentation, in our words: with another image, and without SQL Server. What it
#: says to SQL Server stays.
EMULATORS_COMPOSE = """
services:
  emulator:
    container_name: "servicebus-emulator"
    image: duobus
    volumes:
      - "${CONFIG_PATH}:/ServiceBus_Emulator/ConfigFiles/Config.json"
    ports:
      - "5672:5672"
      - "5300:5300"
    environment:
      SQL_SERVER: sqledge
      MSSQL_SA_PASSWORD: "${MSSQL_SA_PASSWORD}"
      ACCEPT_EULA: ${ACCEPT_EULA}
      SQL_WAIT_INTERVAL: ${SQL_WAIT_INTERVAL}
    networks:
      sb-emulator:
        aliases:
          - "sb-emulator"
networks:
  sb-emulator:
"""


class Instruction(NamedTuple):
    """One instruction of a Dockerfile."""

    name: str
    text: str


def instructions(path: Path = DOCKERFILE) -> list[Instruction]:
    """The instructions, with continued lines joined and comments left out."""
    lines = [line for line in path.read_text().splitlines() if not line.lstrip().startswith("#")]
    text = re.sub(r"\\\n\s*", " ", "\n".join(lines))
    return [Instruction(*line.split(None, 1)) for line in text.splitlines() if line.strip()]


def last_stage() -> list[Instruction]:
    """Those of the stage that becomes the image."""
    found = instructions()
    return found[max(number for number, one in enumerate(found) if one.name == "FROM") :]


def one(name: str) -> str:
    """The text of the only instruction of a name in the last stage."""
    (found,) = [instruction.text for instruction in last_stage() if instruction.name == name]
    return found


def variables() -> dict[str, str]:
    """What ENV sets."""
    pairs = [word.split("=", 1) for word in shlex.split(one("ENV"))]
    return dict(pairs)


def words(text: str) -> list[str]:
    """An instruction in the form of a list."""
    found: list[str] = json.loads(text)
    return found


def compose(text: str, environment: Mapping[str, str]) -> dict[str, Any]:
    """The only service of a compose file, with variables put in as ``docker compose`` does."""

    def value(match: re.Match[str]) -> str:
        given = environment.get(match["name"], "")
        return given or match["default"] or ""

    filled = re.sub(r"\$\{(?P<name>\w+)(?::-(?P<default>[^}]*))?\}", value, text)
    (service,) = yaml.safe_load(filled)["services"].values()
    assert isinstance(service, dict)
    return service


def mounts(service: Mapping[str, Any]) -> dict[str, str]:
    """Path in the container to what is mounted there: a path, or the name of a volume."""
    found = {}
    for text in service.get("volumes", ()):
        source, target = text.split(":")[:2]
        found[target] = source
    return found


def ports(service: Mapping[str, Any]) -> dict[int, int]:
    """Port in the container to the one on the machine."""
    return {int(text.split(":")[-1]): int(text.split(":")[-2]) for text in service.get("ports", ())}


def environment_of(service: Mapping[str, Any]) -> dict[str, str]:
    """Variables of a service; one without a value is an empty text."""
    return {name: "" if value is None else str(value) for name, value in service.get("environment", {}).items()}
