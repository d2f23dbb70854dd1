#!/usr/bin/env python3
"""nibble serve under load, beside llama-server, in turns on the same machine.

  python3 bench/serve_load.py [MODEL] [--llama LLAMA-SERVER] [--rounds 3] [--clients 32] [--requests 1] [--tokens 128]
                              [--prompt 64-512] [--shared 0.33] [--threads 2] [--json FILE]

Each client sends --requests requests, one after the other. Prompts are token ids of real text, of lengths drawn evenly
between the two of --prompt; the first --shared of each is a common prefix, the rest its own. Answers are greedy streams
of --tokens tokens. Printed for each server: tokens a second of all answers together, the time from the request to the
first text (p50, p99), the longest pause of an answer (the median over answers, and the worst), and VmHWM. For nibble it
also prints the figures of /memory, and one client alone against `nibble bench` (--alone 0: not).

LLAMA-SERVER is the program built from llama-cpp-python's source package (vendor/llama.cpp). --nibble-args and
--llama-args are added to their commands; --isa avx2 keeps nibble to it (of llama.cpp keep the folder's
libggml-cpu-haswell.so alone). Exit 1 when an answer was lost."""
import argparse
import json
import os
import random
import shlex
import statistics
import subprocess
import sys

from load import Child, closed_loop, end_with_servers, seen

HERE = os.path.dirname(os.path.abspath(__file__))
NIBBLE = os.environ.get("NIBBLE", os.path.join(HERE, "..", "build", "nibble"))


def tokens_of(model):
    """Token ids of the documentation."""
    folder = os.path.join(HERE, "..", "docs")
    text = "".join(open(os.path.join(folder, name), encoding="utf-8").read()
                   for name in sorted(os.listdir(folder)) if name.endswith(".md"))
    done = subprocess.run([NIBBLE, "tokenize", model, "-p", text[:120000], "--json"], capture_output=True, text=True)
    if done.returncode:
        sys.exit(done.stderr)
    return json.loads(done.stdout)["tokens"]


def bodies_of(args, ids, turn):
    """[client][request]: other texts in every turn, so that no server has seen them."""
    draw = random.Random(args.seed + turn)
    low, high = (int(n) for n in args.prompt.split("-"))
    common = draw.randrange(len(ids) - high)

    def body():
        n = draw.randint(low, high)
        n_common, own = int(n * args.shared), draw.randrange(len(ids) - high)
        return {"prompt": ids[common:common + n_common] + ids[own:own + n - n_common], "max_tokens": args.tokens,
                "temperature": 0, "ignore_eos": True, "seed": 1}
    return [[body() for _ in range(args.requests)] for _ in range(args.clients)]


def nibble_command(args, n):
    return [NIBBLE, "serve", args.model, "-t", str(args.threads), "--parallel", str(n), "-c", str(args.context),
            "--queue", str(2 * n), *shlex.split(args.nibble_args)]


def llama_command(args, n):
    return [args.llama, "-m", args.model, "-t", str(args.threads), "-tb", str(args.threads), "-np", str(n), "-c",
            str(n * args.context), *shlex.split(args.llama_args)]


def measure(args, command, bodies, memory=False):
    server = Child(command, {"NIBBLE_ISA": args.isa} if args.isa else None)
    try:
        closed_loop(server.port, [[dict(bodies[0][0], max_tokens=2)]])  # the cost of the very first request
        out = seen(*closed_loop(server.port, bodies))
        out["hwm"] = server.peak()
        if memory:
            value = json.loads(server.get("/memory")[1])
            out["memory_peak"] = value["tiers"]["ram"]["peak"]
            out["memory_rss_peak"], out["cap"] = value["rss_peak"], value["tiers"]["ram"]["cap"]
    finally:
        server.end()
    return out


def alone(args, ids):
    """Tokens a second of one client after its first token, and of nibble bench, in turns."""
    n = 4 * args.tokens
    body = {"prompt": ids[:64], "max_tokens": n, "temperature": 0, "ignore_eos": True}
    env = {**os.environ, **({"NIBBLE_ISA": args.isa} if args.isa else {})}
    served, timed = [], []
    server = Child(nibble_command(args, 1), env)
    try:
        closed_loop(server.port, [[body]])
        for _ in range(args.alone):
            stream = closed_loop(server.port, [[body]])[0][0]
            served.append((stream.n_token() - 1) / (stream.last - stream.first))
            command = [NIBBLE, "bench", args.model, "-t", str(args.threads), "-p", "0", "-n", str(n), "-r", "1", "--json"]
            done = subprocess.run(command, capture_output=True, text=True, env=env, check=True)
            timed.append(json.loads(done.stdout)["rows"][0]["tok_s"])
    finally:
        server.end()
    ratios = [a / b for a, b in zip(served, timed)]
    return {"served_tok_s": statistics.median(served), "bench_tok_s": statistics.median(timed),
            "share": statistics.median(ratios), "shares": ratios}


def print_row(name, turns):
    def middle(key):
        return statistics.median(t[key] for t in turns)
    print(f"{name:8} {middle('tok_s'):8.1f} tok/s  first p50 {middle('first_p50'):7.3f} s  p99 {middle('first_p99'):7.3f} s"
          f"  pause {middle('gap_p50'):6.3f} s, worst {max(t['gap_max'] for t in turns):6.3f} s"
          f"  VmHWM {max(t['hwm'] for t in turns) / 2**20:7.1f} MiB  lost {sum(t['failed'] for t in turns)}", flush=True)


def main():
    usage = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    usage.add_argument("model", nargs="?", default="smollm2")
    usage.add_argument("--llama")
    for name, value in (("rounds", 3), ("clients", 32), ("requests", 1), ("tokens", 128), ("threads", 2), ("seed", 1),
                        ("context", 768), ("alone", 5)):
        usage.add_argument("--" + name, type=int, default=value)
    usage.add_argument("--prompt", default="64-512")
    usage.add_argument("--shared", type=float, default=1 / 3)
    usage.add_argument("--isa")
    usage.add_argument("--nibble-args", default="")
    usage.add_argument("--llama-args", default="")
    usage.add_argument("--json")
    args = usage.parse_args()
    end_with_servers()
    if args.llama and not os.path.exists(args.model):
        sys.exit("beside llama-server: the model's file, not its name")
    ids, out = tokens_of(args.model), {"nibble": [], "llama": []}
    for turn in range(args.rounds):
        bodies = bodies_of(args, ids, turn)
        out["nibble"].append(measure(args, nibble_command(args, args.clients), bodies, True))
        print_row("nibble", out["nibble"][-1:])
        if args.llama:
            out["llama"].append(measure(args, llama_command(args, args.clients), bodies))
            print_row("llama", out["llama"][-1:])
    print("medians")
    print_row("nibble", out["nibble"])
    worst = max(out["nibble"], key=lambda t: abs(t["memory_peak"] / t["hwm"] - 1))
    print(f"/memory: peak of the ledger {worst['memory_peak'] / worst['hwm']:.4f} of VmHWM, rss_peak "
          f"{worst['memory_rss_peak'] / worst['hwm']:.4f}")
    if args.llama:
        print_row("llama", out["llama"])
        pairs = list(zip(out["nibble"], out["llama"]))
        for key, of in (("tok_s", lambda a, b: a / b), ("first_p50", lambda a, b: b / a), ("first_p99", lambda a, b: b / a)):
            ratios = [of(a[key], b[key]) for a, b in pairs]
            print(f"{key}: {statistics.median(ratios):.2f} times better ({min(ratios):.2f} to {max(ratios):.2f})")
    if args.alone:
        out["alone"] = alone(args, ids)
        print(f"one client: {out['alone']['served_tok_s']:.1f} tok/s, nibble bench {out['alone']['bench_tok_s']:.1f}, "
              f"share {out['alone']['share']:.3f}")
    if args.json:
        with open(args.json, "w", encoding="utf-8") as file:
            json.dump({"args": vars(args), **out}, file, indent=1)
    return any(t["failed"] for turns in (out["nibble"], out["llama"]) for t in turns)


if __name__ == "__main__":
    sys.exit(main())
