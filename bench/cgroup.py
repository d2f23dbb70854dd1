#!/usr/bin/env python3
"""nibble under --ram and llama.cpp with mmap, each alone in a memory cgroup of the same size, as on a machine with that
much memory. The page cache counts against a cgroup, so it cannot hold weights for free.

  python3 bench/cgroup.py MODEL.gguf LIMIT_MIB [LIMIT_MIB ...] [--python PY] [-n 32] [-p 64] [--packed] [--kernel 2]

Prompts are timed by 'nibble bench'. Generation is measured as a user sees it: 'nibble run' continues a text, greedily
("greedy") and with its default sampling ("usual": among the 40 likeliest tokens). The rate is the tokens after the
first one in the time after it. llama.cpp computes as many tokens.

Needs root and a memory controller (v1 or v2). The file's pages are dropped from the page cache before each run;
inside the cgroup both begin cold. nibble gets --ram of the limit less --kernel MiB, which the kernel charges for page tables and
the like. --python: one that has llama_cpp (bench/install-llama.sh); without it nibble runs alone."""
import argparse
import glob
import json
import os
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
from llama import Llama  # noqa: E402

TEXT = "The history of the Roman Empire begins with the founding of the city"
NIBBLE = os.path.join(HERE, "..", "build", "nibble")


class Cgroup:
    """A child group of the memory controller's root, with a limit; removed at the end."""

    def __init__(self, limit):
        v2 = os.path.exists("/sys/fs/cgroup/cgroup.controllers")
        root = "/sys/fs/cgroup" if v2 else "/sys/fs/cgroup/memory"
        self.path = os.path.join(root, f"nibble-bench-{os.getpid()}")
        if v2:
            self.write(os.path.join(root, "cgroup.subtree_control"), "+memory", root)
        os.makedirs(self.path, exist_ok=True)
        self.write("memory.max" if v2 else "memory.limit_in_bytes", limit)
        swap = "memory.swap.max" if v2 else "memory.memsw.limit_in_bytes"
        if os.path.exists(os.path.join(self.path, swap)):
            self.write(swap, 0 if v2 else limit)
        self.peak_file = "memory.peak" if v2 else "memory.max_usage_in_bytes"

    def write(self, name, value, folder=None):
        with open(os.path.join(folder or self.path, name), "w") as f:
            f.write(str(value))

    def run(self, command, timeout=600):
        """stdout of the command in the cgroup; None if it failed, with the reason on stderr."""
        def enter():
            self.write("cgroup.procs", os.getpid())
        try:
            done = subprocess.run(command, capture_output=True, text=True, preexec_fn=enter, timeout=timeout)
        except subprocess.TimeoutExpired:
            return None, f"more than {timeout} s"
        if done.returncode:
            return None, done.stderr.strip() or f"ended by signal {-done.returncode}"
        return json.loads(done.stdout.strip().splitlines()[-1]), None

    def peak(self):
        try:
            return int(open(os.path.join(self.path, self.peak_file)).read())
        except OSError:
            return 0

    def close(self):
        os.rmdir(self.path)


def drop(path):
    fd = os.open(path, os.O_RDONLY)
    os.fsync(fd)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(fd)


def in_group(limit, path, command, timeout):
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    for file in [path, *glob.glob(os.path.join(cache, "nibble", "packed", "*.nibpack"))]:
        drop(file)
    group = Cgroup(limit)
    try:
        result, why = group.run(command, timeout)
        return result, why, group.peak()
    finally:
        group.close()


def nibble_command(args, test, n, ram):
    """The command, and a function that reads its tokens a second."""
    common = ["-t", str(args.t), "-c", str(args.c), "--ram", ram, "--json", "-q", "--packed-cache", "auto" if args.packed else "off"]
    if test == "pp":
        return [NIBBLE, "bench", args.model, "-p", str(n), "-n", "0", "-r", "1", *common], lambda r: r["rows"][0]["tok_s"]
    draw = ["--temp", "0"] if test == "greedy" else ["--seed", "1"]
    text = ["--tokens", "1,2,3,4,5,6,7,8"] if args.tokens else ["--raw", "-p", TEXT]
    return [NIBBLE, "run", args.model, *text, "-n", str(n + 1), "--ignore-eos", *draw, *common], (
        lambda r: r["timings"]["token_n"] / r["timings"]["token_s"])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("limits", nargs="+", type=float, metavar="LIMIT_MIB")
    parser.add_argument("--python", help="a Python that has llama_cpp")
    parser.add_argument("--kernel", type=float, default=2, help="MiB of the limit that nibble is not given")
    parser.add_argument("-n", type=int, default=32)
    parser.add_argument("-p", type=int, default=64)
    parser.add_argument("-c", type=int, default=256)
    parser.add_argument("-t", type=int, default=2)
    parser.add_argument("--timeout", type=int, default=300)
    parser.add_argument("--tokens", action="store_true", help="continue the tokens 1 to 8: the model has no text (nibble synth)")
    parser.add_argument("--packed", action="store_true", help="nibble keeps the packed weights on disk (made before, outside the cgroup)")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    llama = Llama(args.python) if args.python else None
    rows = []
    if args.packed:
        subprocess.run([NIBBLE, "bench", args.model, "-p", "0", "-n", "1", "-r", "1", "--packed-cache", "on", "-q", "--ram",
                        f"{int(min(args.limits) - args.kernel)}M", "-c", str(args.c)], check=True, capture_output=True)
    for limit in args.limits:
        theirs, their_why = {}, {}
        for test, n in (("pp", args.p), ("greedy", args.n), ("usual", args.n)):
            if not n:
                continue
            ram = f"{int((limit - args.kernel) * 1024)}K"
            command, rate = nibble_command(args, test, n, ram)
            ours, why, peak = in_group(int(limit * 2**20), args.model, command, args.timeout)
            row = {"limit_mib": limit, "test": f"{test} {n}", "nibble": ours and rate(ours), "peak_mib": peak / 2**20, "why": why}
            kind = "pp" if test == "pp" else "tg"
            if llama and kind not in their_why:
                theirs[kind], their_why[kind], _ = in_group(int(limit * 2**20), args.model,
                                                            llama.command(args.model, kind, n, args.t, 1, args.c) + ["-k", "0"], args.timeout)
            if llama:
                row["llama"], row["llama_why"] = theirs[kind] and theirs[kind]["tok_s"], their_why[kind]
            rows.append(row)
            if not args.json:
                show = lambda v, w: f"{v:8.1f}" if v else f"  ({w})"
                line = f"{os.path.basename(args.model):<24} {limit:6.0f} MiB  {row['test']:<9} nibble {show(row['nibble'], row['why'])} t/s"
                if llama:
                    line += f"  llama.cpp {show(row['llama'], row['llama_why'])} t/s"
                    if row["nibble"] and row["llama"]:
                        line += f"  {row['nibble'] / row['llama']:.1f}x"
                print(f"{line}  (cgroup's peak {row['peak_mib']:.1f} MiB)", flush=True)
    if args.json:
        print(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
