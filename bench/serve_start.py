#!/usr/bin/env python3
"""Time to the first token of nibble serve: from its start, and for a prompt that it computed before.

  python3 bench/serve_start.py [MODEL] [--runs 5] [--tokens 1000] [--threads 2]

Printed for each run: seconds from the start of the process to the first text of a short answer; then the time to the
first text of a prompt of --tokens tokens, new, a second time, and after SIGKILL and a restart with the same
--prefix-cache. Medians, and the shares of the first."""
import argparse
import os
import statistics
import sys
import tempfile
import time

from load import Child, closed_loop, end_with_servers
from serve_load import NIBBLE, tokens_of


def first(server, body):
    stream = closed_loop(server.port, [[body]])[0][0]
    return stream.first - stream.asked, stream.first, stream.text()


def wait_written(server):
    """Waits until the thread that writes pages is idle for a moment."""
    seen = None
    while True:
        lines = [line for line in server.get("/metrics")[1].splitlines() if line.startswith(b"nibble_prefix_disk_bytes")]
        if lines == seen and not lines[0].endswith(b" 0"):
            return
        seen = lines
        time.sleep(0.3)


def run(args, ids, folder, turn):
    command = [NIBBLE, "serve", args.model, "-t", str(args.threads), "-c", str(args.tokens + 64), "--prefix-cache", folder]
    body = {"prompt": ids[turn * args.tokens:(turn + 1) * args.tokens], "max_tokens": 4, "temperature": 0, "ignore_eos": True}
    short = {"prompt": ids[:8], "max_tokens": 1, "temperature": 0, "ignore_eos": True}
    begun = time.perf_counter()
    server = Child(command)
    out = {"start": first(server, short)[1] - begun}
    out["new"], _, text = first(server, body)
    out["again"], _, same = first(server, body)
    wait_written(server)
    server.child.kill()
    server.child.wait()
    server = Child(command)
    out["restart"], _, third = first(server, body)
    server.end()
    if not text == same == third:
        sys.exit(f"the answers differ: {text!r} {same!r} {third!r}")
    return out


def main():
    usage = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    usage.add_argument("model", nargs="?", default="smollm2")
    for name, value in (("runs", 5), ("tokens", 1000), ("threads", 2)):
        usage.add_argument("--" + name, type=int, default=value)
    args = usage.parse_args()
    end_with_servers()
    ids = tokens_of(args.model)
    with tempfile.TemporaryDirectory() as folder:
        rows = [run(args, ids, os.path.join(folder, "prefixes"), turn) for turn in range(args.runs)]
    middle = {key: statistics.median(row[key] for row in rows) for key in rows[0]}
    print(f"start to first text {middle['start']:.3f} s; a prompt of {args.tokens} tokens: new {middle['new']:.3f} s, again "
          f"{middle['again']:.4f} s ({middle['again'] / middle['new']:.1%}), after SIGKILL and a restart "
          f"{middle['restart']:.4f} s ({middle['restart'] / middle['new']:.1%})")


if __name__ == "__main__":
    main()
