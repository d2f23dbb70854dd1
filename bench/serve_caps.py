#!/usr/bin/env python3
"""Checks that nibble serve keeps --ram under any load: random servers under random loads.

  python3 bench/serve_caps.py [MODEL] [--runs 100] [--seed 1] [--low 64] [--high 400] [--json FILE]

Each run draws a cap (MiB, between --low and --high), --parallel, context, cache format, threads, speculation, a latency
target, --cache-size and a prefix cache. Then up to twice --parallel clients request answers from a list. Some stream,
some ask for probabilities, and some disconnect. The answers are compared with those of a server without a cap and with
one place, in the same cache format. A server that refuses its cap is drawn again.

The peak is the kernel's (VmHWM), read when the load is over. Exit 1 when a cap was broken, or an answer was lost or
differs."""
import argparse
import json
import os
import random
import statistics
import sys
import tempfile
import threading

from load import Child, Stream, closed_loop, end_with_servers

HERE = os.path.dirname(os.path.abspath(__file__))
NIBBLE = os.environ.get("NIBBLE", os.path.join(HERE, "..", "build", "nibble"))
KINDS = ("f16", "f32", "kv8", "kv4")
TEXT = "A river that rises in the mountains carries stones, then gravel, then sand, and in the end only mud. "


def bodies():
    """The requests: short and long prompts with a common prefix."""
    return [{"prompt": TEXT * (1 + 3 * i % 8) + f"So {i}", "max_tokens": 8 + 4 * (i % 5), "temperature": 0.8, "seed": i,
             "ignore_eos": True, **({"logprobs": 3} if i % 4 == 3 else {})} for i in range(12)]


def draw_server(draw, args, folder):
    """(cap in bytes, cache format, places, options)"""
    cap, kind, places = draw.randint(args.low, args.high) << 20, draw.choice(KINDS), draw.choice([1, 2, 4, 8, 16])
    context = draw.choice([320, 512, 1024])
    options = ["--ram", str(cap), "--kv", kind, "-c", str(context), "-t", draw.choice("12"), "--queue", str(2 * places),
               "--draft-max", draw.choice(["0", "4", "8"]), "--latency", draw.choice(["0", "50"])]
    usual = draw.random() < 0.3
    if usual:
        places = 4
    else:
        options += ["--parallel", str(places)]
    if not usual and draw.random() < 0.4:
        options += ["--cache-size", str(max(context, context * places // 3))]
    if draw.random() < 0.4:
        options += ["--prefix-cache", os.path.join(folder, "prefixes"), "--prefix-cache-size", "64M"]
    return cap, kind, places, options


def disconnect(port, body):
    """A client that disconnects at the beginning of its answer, or before."""
    stream = Stream(port, dict(body, max_tokens=200))
    stream.socket.settimeout(0.2)
    try:
        stream.socket.recv(100)
    except OSError:
        pass
    stream.socket.close()


def load(server, draw, places, asked, wanted):
    """(number of answers, number of those that were lost or differ)"""
    n_client = draw.randint(1, 2 * places)
    picks = [[draw.randrange(len(asked)) for _ in range(draw.randint(1, 3))] for _ in range(n_client)]
    threads = [threading.Thread(target=disconnect, args=(server.port, draw.choice(asked))) for _ in range(draw.randint(0, 2))]
    for thread in threads:
        thread.start()
    streams, _ = closed_loop(server.port, [[dict(asked[i], user=str(i)) for i in each] for each in picks], again=(0, 429))
    for thread in threads:
        thread.join()
    wrong = [(s.body["user"], s.data[-400:]) for s in streams if not s.whole() or s.text() != wanted[int(s.body["user"])]]
    return len(streams), wrong


def alone(args, asked):
    """{cache format: texts}"""
    texts = {}
    for kind in KINDS:
        server = Child([NIBBLE, "serve", args.model, "--kv", kind, "--parallel", "1", "-c", "320"])
        texts[kind] = [closed_loop(server.port, [[body]])[0][0].text() for body in asked]
        server.end()
    return texts


def main():
    usage = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    usage.add_argument("model", nargs="?", default="smollm2")
    for name, value in (("runs", 100), ("seed", 1), ("low", 64), ("high", 400)):
        usage.add_argument("--" + name, type=int, default=value)
    usage.add_argument("--json")
    args = usage.parse_args()
    end_with_servers()
    draw, asked, rows, refused = random.Random(args.seed), bodies(), [], 0
    wanted = alone(args, asked)
    with tempfile.TemporaryDirectory() as folder:
        while len(rows) < args.runs:
            cap, kind, places, options = draw_server(draw, args, folder)
            try:
                server = Child([NIBBLE, "serve", args.model, *options])
            except RuntimeError:
                refused += 1
                continue
            try:
                n, wrong = load(server, draw, places, asked, wanted[kind])
                ledger = json.loads(server.get("/memory")[1])["tiers"]["ram"]
                rows.append({"cap": cap, "peak": server.peak(), "ledger": ledger["peak"], "answers": n, "wrong": len(wrong),
                             "options": options})
            finally:
                server.end()
            row = rows[-1]
            if wrong or row["peak"] > cap:
                print(f"run {len(rows)}: {row}\n  {wrong[:2]}", flush=True)
            elif len(rows) % 10 == 0:
                print(f"{len(rows)} runs", flush=True)
    used, reported = [r["peak"] / r["cap"] for r in rows], [r["ledger"] / r["peak"] for r in rows]
    broken, wrong = sum(u > 1 for u in used), sum(r["wrong"] for r in rows)
    print(f"{len(rows)} servers ({refused} refused their cap), {sum(r['answers'] for r in rows)} answers: {broken} caps broken, "
          f"{wrong} answers lost or wrong; peak of the cap: median {statistics.median(used):.3f}, most {max(used):.3f}; "
          f"/memory's peak of VmHWM: median {statistics.median(reported):.3f}, {min(reported):.3f} to {max(reported):.3f}")
    if args.json:
        with open(args.json, "w", encoding="utf-8") as file:
            json.dump(rows, file, indent=1)
    return broken > 0 or wrong > 0


if __name__ == "__main__":
    sys.exit(main())
