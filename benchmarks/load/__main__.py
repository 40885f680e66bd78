"""Command line of the load generator: run workloads against any AMQP 1.0 broker and print what they measured."""

import argparse
import json
import sys
from dataclasses import replace

from benchmarks.load import workloads
from benchmarks.load.exchange import Limits
from benchmarks.load.link import Target
from benchmarks.load.wire import LoadError


def main(arguments: list[str] | None = None) -> int:
    """Run the workloads that were asked for; return 0, or 1 when a measurement is void."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.load", description=__doc__)
    parser.add_argument("workload", nargs="+", help="A100, A1000, B, C1x1, C4x4, D, E1, E10, or purge to empty a queue")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=5672)
    parser.add_argument("--address", default="plain", help="queue, or for RabbitMQ /amq/queue/NAME")
    parser.add_argument("--user", default="RootManageSharedAccessKey", help="empty for SASL ANONYMOUS")
    parser.add_argument("--password", default="SAS_KEY_VALUE")
    parser.add_argument("--hostname", default="", help="host name to open, the one connected to by default")
    parser.add_argument("--body", type=int, default=1024, metavar="BYTES")
    parser.add_argument("--credit", type=int, default=workloads.CREDIT, help="link credit of each receiver")
    parser.add_argument("--stall", type=float, default=30.0, metavar="S", help="fail when the peer is silent so long")
    parser.add_argument("--json", action="store_true", help="one JSON object per line")
    length = parser.add_mutually_exclusive_group()
    length.add_argument("--seconds", type=float, help="time to send for; 3 by default; B always counts messages")
    length.add_argument("--messages", type=int, help="messages to send; 100,000 by default in B")
    options = parser.parse_args(arguments)
    seconds = 3.0 if options.seconds is None and options.messages is None else options.seconds
    limits = Limits(messages=options.messages, seconds=seconds, stall=options.stall)
    target = Target(options.host, options.port, options.address, options.user, options.password, options.hostname)
    try:
        for name in options.workload:
            if name == "purge":
                print(json.dumps({"purged": workloads.purge(target)}))
                continue
            workload = replace(workloads.parse(name, limits), body_bytes=options.body, credit=options.credit)
            result = workloads.run(target, workload)
            print(json.dumps(result.as_dict()) if options.json else text(result), flush=True)
    except (LoadError, OSError) as error:
        print(f"the measurement is void: {error}", file=sys.stderr)
        return 1
    except ValueError as error:
        parser.error(str(error))
    return 0


def text(result: workloads.Result) -> str:
    """Say a result in one line."""
    parts = [f"{result.workload:6} {result.rate:10,.0f} msg/s  ({result.messages:,} in {result.seconds:.2f} s)"]
    if result.send_p50_ms is not None:
        parts.append(f"send p50 {result.send_p50_ms:.2f} p99 {result.send_p99_ms:.2f} ms")
    if result.end_to_end_p50_ms is not None:
        parts.append(f"end to end p50 {result.end_to_end_p50_ms:.2f} p99 {result.end_to_end_p99_ms:.2f} ms")
    parts.append(f"generator {result.generator_cpu_us:.2f} us")
    return "  ".join(parts)


if __name__ == "__main__":
    sys.exit(main())
