#!/usr/bin/env python3
"""The cost of HTTP for one client: processor time of a token from nibble serve, against one from nibble bench.

  python3 bench/serve_one.py [MODEL] [--rounds 15] [--tokens 512] [--threads 1]

Each round has a stream of --tokens tokens from a running server (processor time of the whole process, the sending
thread included), and two runs of nibble bench -np 1, whose difference is that many tokens without start and end.
Processor time is used, because other work on the machine does not count in it. One thread computes, because two would
spin while they wait for each other. Printed are medians over the rounds and quartiles, and the speed by the wall clock,
for a quiet machine. A model of some thousand parameters shows the cost of HTTP itself, on a busy machine too.
NIBBLE_ISA=avx2 chooses other kernels for both."""
import argparse
import glob
import json
import os
import resource
import statistics
import subprocess

from load import Child, closed_loop, end_with_servers
from serve_load import NIBBLE

PROMPT = [1, 50, 63]
TURNS = 3  # of --tokens: the difference between the two runs of the bench


def used(pid):
    """Processor seconds of the process's first thread, and of the others."""
    first, others = 0.0, 0.0
    for path in glob.glob(f"/proc/{pid}/task/*/schedstat"):
        with open(path) as file:
            seconds = int(file.read().split()[0]) / 1e9
        if path.split("/")[4] == str(pid):
            first += seconds
        else:
            others += seconds
    return first, others


def serve(server, args):
    body = {"prompt": PROMPT, "max_tokens": args.tokens, "temperature": 0, "ignore_eos": True}
    before = used(server.child.pid)
    stream = closed_loop(server.port, [[body]])[0][0]
    after = used(server.child.pid)
    return {"serve": sum(after) - sum(before), "computes": after[0] - before[0], "sends": after[1] - before[1],
            "events": len(stream.events()),
            "serve_speed": (stream.n_token() - 1) / (stream.last - stream.first)}


def bench_once(args, repeats):
    command = [NIBBLE, "bench", args.model, "-t", str(args.threads), "-np", "1", "-p", "2", "-n", str(args.tokens), "-r",
               str(repeats), "--json", "-q"]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    said = subprocess.run(command, capture_output=True, check=True).stdout
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    speed = json.loads(said)["rows"][0]["tok_s"]
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, speed


def bench(args):
    one, _ = bench_once(args, 1)
    more, speed = bench_once(args, 1 + TURNS)
    return {"bench": (more - one) / TURNS, "bench_speed": speed}


def main():
    usage = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    usage.add_argument("model", nargs="?", default="smollm2")
    for name, value in (("rounds", 15), ("tokens", 512), ("threads", 1)):
        usage.add_argument("--" + name, type=int, default=value)
    args = usage.parse_args()
    end_with_servers()
    server = Child([NIBBLE, "serve", args.model, "-t", str(args.threads), "-c", "1024"])
    try:
        serve(server, args)
        rows = [dict(serve(server, args), **bench(args)) for _ in range(args.rounds)]
    finally:
        server.end()
    middle = {key: statistics.median(row[key] for row in rows) for key in rows[0]}
    shares = sorted(row["bench"] / row["serve"] for row in rows)
    us = 1e6 / args.tokens
    print(f"processor time of a token: bench {middle['bench'] * us:.1f} us, serve {middle['computes'] * us:.1f} us in the thread "
          f"that computes; of a piece {middle['sends'] / middle['events'] * 1e6:.0f} us in the one that sends, "
          f"{middle['events'] / args.tokens:.3f} pieces a token")
    print(f"bench / serve {statistics.median(shares):.3f} (quartiles {shares[len(shares) // 4]:.3f} to "
          f"{shares[-1 - len(shares) // 4]:.3f}); by the clock {middle['serve_speed'] / middle['bench_speed']:.3f}")


if __name__ == "__main__":
    main()
