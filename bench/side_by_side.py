#!/usr/bin/env python3
"""nibble and llama.cpp on the same models, alternately in one run, with the same threads: prompt, generation,
time from start to the first token, and peak memory.

  python3 bench/side_by_side.py MODEL.gguf [MODEL.gguf ...] [-t 2] [--rounds 3]

Needs a Python with llama-cpp-python, built from its source package so that it uses this CPU
(bench/install-llama.sh makes one). Ratios above 1 mean that nibble is better. Nothing is asserted here."""
import argparse
import json
import os
import statistics
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))


def run_json(command):
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(command)}\nexit {done.returncode}: {done.stderr.strip()}")
    return json.loads(done.stdout.strip().splitlines()[-1])


def nibble_rate(args, model, test, n):
    flags = ["-p", str(n), "-n", "0"] if test == "pp" else ["-p", "0", "-n", str(n)]
    return run_json([args.nibble, "bench", model, *flags, "-t", str(args.t), "-r", "3", "--json", "-q"])["rows"][0]["tok_s"]


def llama(args, model, test, n, extra=()):
    worker = os.path.join(HERE, "llama_worker.py")
    return run_json([args.python, worker, model, "--test", test, "-n", str(n), "-t", str(args.t), *extra])


def nibble_start(args, model):
    """Seconds from exec to the end of a run that makes one token, and the peak resident set. The tokens are those
    of llama_worker.py."""
    n_vocab = run_json([args.nibble, "info", model, "--json"])["n_vocab"]
    ids = ",".join(str((i + 1) * 2654435761 % n_vocab) for i in range(16))
    command = [args.nibble, "run", model, "--tokens", ids, "-n", "1", "-c", "512", "-t", str(args.t), "--json",
               "--temp", "0", "--ignore-eos"]
    start = time.perf_counter()
    result = run_json(command)
    return time.perf_counter() - start, result["memory"]["rss_peak"]


def median(values):
    return statistics.median(values)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+")
    parser.add_argument("-t", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--nibble", default=os.path.join(HERE, "..", "build", "nibble"))
    parser.add_argument("--python", default=sys.executable, help="a Python that has llama_cpp")
    args = parser.parse_args()
    print(f"{'model':<28} {'test':<8} {'nibble':>12} {'llama.cpp':>12} {'ratio':>7}")
    for model in args.models:
        name = os.path.basename(model)[:28]
        for test, n in (("pp", 512), ("tg", 128)):
            ours, theirs = [], []
            for _ in range(args.rounds):
                ours.append(nibble_rate(args, model, test, n))
                theirs.append(llama(args, model, test, n)["tok_s"])
            a, b = median(ours), median(theirs)
            print(f"{name:<28} {test + str(n):<8} {a:>7.1f} t/s {b:>7.1f} t/s {a / b:>7.2f}", flush=True)
        ours, theirs = [], []
        for _ in range(args.rounds):
            ours.append(nibble_start(args, model))
            result = llama(args, model, "start", 128, ("-c", "512"))
            theirs.append((result["start_s"], result["rss"]))
        a, b = median([o[0] for o in ours]), median([t[0] for t in theirs])
        print(f"{name:<28} {'start':<8} {a:>10.3f} s {b:>10.3f} s {b / a:>7.2f}")
        a, b = max(o[1] for o in ours) / 2**20, max(t[1] for t in theirs) / 2**20
        print(f"{name:<28} {'memory':<8} {a:>8.1f} MiB {b:>8.1f} MiB {b / a:>7.2f}", flush=True)


if __name__ == "__main__":
    main()
