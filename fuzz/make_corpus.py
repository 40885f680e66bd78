"""Write the seeds under ``fuzz/corpus`` again: ``python fuzz/make_corpus.py``."""

from __future__ import annotations

import sys
import uuid
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from duobus.amqp.frames import frame  # noqa: E402 - the path comes first
from duobus.amqp.performatives import Attach, Detach, Disposition, End, Source  # noqa: E402 - the path comes first
from duobus.codec import Array, Described, Int, Symbol, Timestamp, ULong, build_message, encode  # noqa: E402
from duobus.model.access_rules import sign_token  # noqa: E402
from fuzz import bearer, heads, journals, relay  # noqa: E402
from fuzz.targets import ATTACHED, HANDSHAKE, KEY, NOW_MS, flow_of, transfer_of  # noqa: E402

UUID = uuid.UUID(int=7)


def main() -> None:
    """Write every seed."""
    message = build_message(["id"], {"name": "value", "number": Int(7)}, data=b"body")
    token = sign_token("sb://ns.example/q", "rule", KEY, NOW_MS // 1000 + 600)
    audience = "sb://ns.example/q"
    put = {"operation": "put-token", "type": "jwt", "name": audience}
    bodies = [
        {"lock-tokens": Array(uuid.UUID, [UUID])},
        {"disposition-status": "completed", "lock-tokens": Array(uuid.UUID, [UUID])},
        {"from-sequence-number": 1, "message-count": Int(5)},
        {"sequence-numbers": Array(int, [1, 2]), "receiver-settle-mode": Int(0)},
        {"messages": [{"message-id": "m", "message": message}]},
        {"sequence-numbers": Array(int, [1, 2])},
    ]
    large = {Symbol(f"k{number}"): number for number in range(700)}
    attach = Attach(name="x", handle=2, role=True, source=Source(address="q", filter=large), properties=large)
    disposition = Disposition(role=True, first=0, last=2**31, settled=True)
    seeds: dict[str, list[bytes]] = {
        "sasl": [b"\xff" + HANDSHAKE, b"\x00" + HANDSHAKE[:60], b"\x10AMQP\x00\x01\x00\x00"],
        "frames": [
            b"\xff" + transfer_of(message),
            b"\x01" + flow_of(2**32 - 1) + frame(0, disposition.to_bytes()),
            b"\xff" + frame(0, Detach(handle=0, closed=True).to_bytes()) + frame(0, End().to_bytes()) + ATTACHED,
            b"\x03" + transfer_of(message) * 3 + b"\x00\x00\x00\x08\x02\x00\x00\x00",
            b"\xff" + frame(0, attach.to_bytes()) + flow_of(5) * 100,
        ],
        "codec": [
            message,
            encode({Symbol("a"): [1, "x", b"y", Timestamp(5)], "b": Array(int, [1, 2, 3])}),
            build_message([], data=build_message(["inner"], data=b"x")),
            b"\x00\x53\x70\x45" + message,
            attach.to_bytes(),
        ],
        "cbs": [build_message([UUID], put, body_value=token), f"{audience}\n{token}".encode()],
        "coordinator": [
            build_message([], body_value=Described(ULong(0x31), [None])),
            build_message([], body_value=Described(Symbol("amqp:discharge:list"), [UUID.bytes, True])),
        ],
        "rules": [
            b"\x00a = 5 AND (sys.Label LIKE 'l!%%' ESCAPE '!' OR NOT b IN ('x', 'it''s')) AND EXISTS([d])",
            b"\x00-a * 2 + c % 3 >= property('a') AND user.e IS NOT NULL OR @t - @d < @t AND newid() <> \"b\"",
            b"\x60SET a = a / 2; REMOVE b, SET sys.To = 'x' + b SET [n n] = newid(); SET sys.TimeToLive = @d",
            b"\xb0" + message,
        ],
        "bearer": bearer.seeds(),
        "heads": heads.seeds(),
        "journals": journals.seeds(),
        "relay": relay.seeds(),
        "management": [bytes([index + 1]) + encode(body) for index, body in enumerate(bodies)],
    }
    for target, found in seeds.items():
        folder = HERE / "corpus" / target
        folder.mkdir(parents=True, exist_ok=True)
        for index, data in enumerate(found):
            (folder / f"seed-{index}").write_bytes(data)


if __name__ == "__main__":
    main()
