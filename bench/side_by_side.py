#!/usr/bin/env python3
"""nibble and llama.cpp on the same models, alternately in one run, with the same threads: prompt, generation,
time from start to the first token, and peak memory.

  python3 bench/side_by_side.py MODEL.gguf [MODEL.gguf ...] [-t 2] [--rounds 5] [--isa avx2] [-np 1,8,32]
                                [--batched-bench PROGRAM]

Needs a Python with llama-cpp-python, built from its source package so that it uses this CPU
(bench/install-llama.sh makes one). --isa avx2 limits both to AVX2: nibble by NIBBLE_ISA, llama.cpp by its build
(bench/install-llama.sh avx2 makes that one; name its Python with --python).

-np 1,8,32 measures that many sequences decoding together instead (64 tokens of prompt, 64 generated, each), in tokens a
second of all of them, as llama-batched-bench counts. --batched-bench runs that program itself instead of
llama-cpp-python (bench/install-llama-tools.sh makes it, and says in which folder it is).

Rounds alternate nibble, llama.cpp, nibble, ...; each figure is the median of its rounds with the smallest and
the largest, and the ratio is the median of the rounds' ratios, whose range shows how reliable it is. Ratios
above 1 mean that nibble is better. Nothing is asserted here."""
import argparse
import json
import os
import statistics
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
from llama import Llama, run_json  # noqa: E402


class Pair:
    """Both engines with the same threads and instruction set. isa: None for all instruction sets of the CPU."""

    def __init__(self, nibble, python, threads, isa=None, repeats=3, batched=None):
        self.nibble, self.threads, self.repeats = nibble, threads, repeats
        self.other, self.batched = None if batched else Llama(python), batched
        self.env = {"NIBBLE_ISA": isa} if isa else {}

    def nibble_rate(self, model, test, n):
        flags = ["-p", str(n), "-n", "0"] if test == "pp" else ["-p", "0", "-n", str(n)]
        command = [self.nibble, "bench", model, *flags, "-t", str(self.threads), "-r", str(self.repeats), "--json", "-q"]
        return run_json(command, self.env)["rows"][0]["tok_s"]

    def llama(self, model, test, n, n_ctx=0):
        return self.other.run(model, test, n, self.threads, self.repeats, n_ctx)

    def nibble_start(self, model):
        """Seconds from exec to the end of a run that makes one token, and the peak resident set. The tokens are
        those of llama_worker.c."""
        n_vocab = run_json([self.nibble, "info", model, "--json"])["n_vocab"]
        ids = ",".join(str((i + 1) * 2654435761 % n_vocab) for i in range(16))
        command = [self.nibble, "run", model, "--tokens", ids, "-n", "1", "-c", "512", "-t", str(self.threads),
                   "--json", "--temp", "0", "--ignore-eos"]
        start = time.perf_counter()
        result = run_json(command, self.env)
        return time.perf_counter() - start, result["memory"]["rss_peak"]

    def batch_rates(self, model, n_seq, n, rounds):
        """tokens/s of all sequences together, for both programs, one pair a round."""
        ours = [self.nibble, "bench", model, "-np", str(n_seq), "-p", str(n), "-n", str(n), "-t", str(self.threads),
                "-r", str(self.repeats), "--json", "-q"]
        return [(run_json(ours, self.env)["rows"][0]["tok_s"], self.llama_batch(model, n_seq, n))
                for _ in range(rounds)]

    def llama_batch(self, model, n_seq, n):
        if not self.batched:
            return self.other.run(model, "batch", n, self.threads, self.repeats, n_seq=n_seq)["tok_s"]
        command = [self.batched, "-m", model, "-npp", str(n), "-ntg", str(n), "-npl", str(n_seq),
                   "-c", str(2 * n * n_seq), "-t", str(self.threads), "-tb", str(self.threads), "-ngl", "0",
                   "--output-format", "jsonl"]
        out = subprocess.run(command, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True).stdout
        rates = [json.loads(line)["speed_tg"] for line in out.splitlines() if line.startswith("{")]
        if not rates:
            raise RuntimeError(f"{self.batched} printed no rates:\n{out[-500:]}")
        return rates[-1]

    def rates(self, model, test, n, rounds):
        """tokens/s of both, one pair a round."""
        return [(self.nibble_rate(model, test, n), self.llama(model, test, n)["tok_s"]) for _ in range(rounds)]

    def starts(self, model, rounds):
        """((seconds, bytes) of nibble, the same of llama.cpp), one pair a round."""
        pairs = []
        for _ in range(rounds):
            ours = self.nibble_start(model)
            theirs = self.llama(model, "start", 128, 512)
            pairs.append((ours, (theirs["start_s"], theirs["rss"])))
        return pairs


def spread(values):
    return statistics.median(values), min(values), max(values)


def show(name, test, pairs, unit, scale=1, larger_is_better=True):
    ours, theirs = spread([a * scale for a, _ in pairs]), spread([b * scale for _, b in pairs])
    ratio = spread([a / b if larger_is_better else b / a for a, b in pairs])
    print(f"{name:<28} {test:<8} {ours[0]:>8.1f} ({ours[1]:.1f}..{ours[2]:.1f}) {theirs[0]:>8.1f} "
          f"({theirs[1]:.1f}..{theirs[2]:.1f}) {unit:<4} {ratio[0]:>6.2f} ({ratio[1]:.2f}..{ratio[2]:.2f})", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+")
    parser.add_argument("-t", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--isa", choices=["avx2"], help="hold both to this instruction set")
    parser.add_argument("--nibble", default=os.path.join(HERE, "..", "build", "nibble"))
    parser.add_argument("--python", default=sys.executable, help="a Python that has llama_cpp")
    parser.add_argument("-np", metavar="N,N,...", help="numbers of sequences that decode together")
    parser.add_argument("--batched-bench", metavar="PROGRAM", help="llama-batched-bench, for -np")
    args = parser.parse_args()
    if args.batched_bench and not args.np:
        parser.error("--batched-bench: only with -np")
    pair = Pair(args.nibble, args.python, args.t, args.isa, batched=args.batched_bench)
    print(f"{'model':<28} {'test':<8} nibble (min..max)  llama.cpp (min..max)  ratio (min..max)")
    for model in args.models:
        name = os.path.basename(model)[:28]
        for n_seq in map(int, args.np.split(",")) if args.np else ():
            show(name, f"x{n_seq}", pair.batch_rates(model, n_seq, 64, args.rounds), "t/s")
        if args.np:
            continue
        for test, n in (("pp", 512), ("tg", 128)):
            show(name, f"{test}{n}", pair.rates(model, test, n, args.rounds), "t/s")
        starts = pair.starts(model, args.rounds)
        show(name, "start", [(a[0], b[0]) for a, b in starts], "ms", 1e3, False)
        show(name, "memory", [(a[1], b[1]) for a, b in starts], "MiB", 2**-20, False)


if __name__ == "__main__":
    main()
