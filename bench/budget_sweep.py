#!/usr/bin/env python3
"""Checks that budgets are kept. Runs many combinations of model, cap, context, threads, prompt and cache format, and
measures each process from outside: its peak resident set (wait4), its tokens, its speed against what the plan predicted.

  python3 bench/budget_sweep.py [MODEL ...] [--runs 200] [--seed 1] [-n 12] [--json FILE]

  peak     of every run must stay within its cap; a cap that is refused (exit 3) must be smaller than the one that
           the refusal names, and the named one must work (or, if it says "at least", lead to one that works)
  tokens   of all runs of a model with the same cache format, activations and weights' precision must be equal,
           whatever the cap, context and number of threads
  plan     predicted against measured: tokens a second and peak bytes, median and worst. Both are about the tokens after
           the first. A short run (-n, --no-learn) finds how many tokens take LONG seconds. The run that counts generates
           those, or as many as its context holds, and is repeated (--no-learn, with the first prediction) until ENOUGH
           seconds were measured. --again N predicts and measures every combination N more times, after all others. Each
           prediction is compared with the measurement right after it, and the median of a combination counts. The
           spread of its times is what no prediction can know

--measure N measures the machine (nibble profile --hardware) before every N runs: if other programs use the disk and
memory, predictions need new rates. Times of runs are stored as for any user, and predict later runs ("by runs");
--cache DIR stores profiles and runs in a folder of its own, which is empty at first.

Prompts are the beginning of a text, or arbitrary tokens if the model has no tokenizer.

Models: default smollm2, gemma3-270m and a synthetic llama-3.2-1b of 4 layers. Combinations are drawn with the seed, so a
run can be repeated. Exit 1 when a cap was broken or tokens differ."""
import argparse
import json
import os
import random
import re
import resource
import statistics
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
NIBBLE = os.path.join(HERE, "..", "build", "nibble")
LONG = 1.0  # seconds of generation, where the context holds so much
ENOUGH = 0.5  # seconds, for which runs in a small context are repeated
MAX_REPEATS = 24
TEXT = """A river that rises in the mountains carries stones, then gravel, then sand, and in the end only the finest mud, because it
flows more and more slowly. Where it meets the sea the mud sinks, year after year, and the land grows. People have always lived there: the
soil is rich, the boats come in, and the floods are forgotten between one and the next."""
UNITS = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}


def run(command):
    """(exit code, stdout, stderr, peak resident bytes, seconds)"""
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        start = time.perf_counter()
        child = subprocess.Popen(command, stdout=out, stderr=err)
        _, status, usage = os.wait4(child.pid, 0)
        seconds = time.perf_counter() - start
        child.returncode = os.waitstatus_to_exitcode(status)
        out.seek(0)
        err.seek(0)
        return child.returncode, out.read(), err.read(), usage.ru_maxrss * 1024, seconds


def seen_peak(peak, doc):
    """A child starts with the peak of this process (Linux hands it over at exec), so wait4 says nothing below that: there
    the run's own VmHWM counts."""
    own = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return peak if peak > 1.02 * own else doc["memory"]["rss_peak"]


def info(model):
    done = subprocess.run([NIBBLE, "info", model, "--json"], capture_output=True, text=True)
    if done.returncode:
        sys.exit(done.stderr)
    return json.loads(done.stdout)


def prompt_of(model, n_vocab):
    done = subprocess.run([NIBBLE, "tokenize", model, "-p", TEXT, "--json"], capture_output=True, text=True)
    if done.returncode == 0:
        return json.loads(done.stdout)["tokens"]
    return [(i + 1) * 2654435761 % n_vocab for i in range(48)]


def named_cap(text, cap):
    """The smallest cap above this one that a refusal names, in bytes."""
    sizes = [float(n) * UNITS[u] for n, u in re.findall(r"([\d.]+) (B|KiB|MiB|GiB)", text)]
    return min((s for s in sizes if s > cap + 2**16), default=None)


def print_error(what, ratios):
    """The distance of predicted / measured from 1."""
    off = sorted(abs(r - 1) for r in ratios)
    print(f"  {what}: off by {statistics.median(off):.1%} in the median, {off[int(0.9 * (len(off) - 1))]:.0%} at nine tenths, {off[-1]:.0%} at worst; "
          f"{sum(o <= 0.25 for o in off)} of {len(off)} within 25 %; the middle is {statistics.median(ratios):.2f}")


class Sweep:
    def __init__(self, args):
        self.args, self.rng = args, random.Random(args.seed)
        self.tokens, self.rows, self.faults = {}, [], []

    def draw(self, model, size):
        share = self.rng.choice([0.1, 0.2, 0.33, 0.5, 0.66, 0.8, 0.9, 1.0, 1.15, 1.5])
        floor = self.rng.choice([0, 8, 16, 32]) * 2**20
        return {"model": model, "cap": int(size * share + floor), "ctx": self.rng.choice([64, 256, 700, 2048]),
                "threads": self.rng.choice([1, 2]), "kv": self.rng.choice(self.args.kv), "prompt": self.rng.choice([1, 16, 48])}

    def command(self, c, cap, n, learn=True):
        ids = ",".join(map(str, self.prompts[c["model"]][:c["prompt"]]))
        return [NIBBLE, "run", c["model"], "--tokens", ids, "-n", str(n), "--temp", "0", "--ignore-eos", "--json", "-c",
                str(c["ctx"]), "-t", str(c["threads"]), "--kv", c["kv"], "--ram", str(cap), "-q"] + ([] if learn else ["--no-learn"])

    def find_cap(self, c):
        """A short run; where its cap was too small perhaps one with the cap that the refusal names. Its JSON; None: refused."""
        code, out, err, peak, seconds = run(self.command(c, c["cap"], self.args.n, False))
        c.update(code=code, peak=peak, seconds=seconds)
        if code == 3:
            c["said"], c["named"] = err, named_cap(err, c["cap"])
            if not c["named"] or c["named"] <= c["cap"]:
                self.faults.append(f"{c}: refused, but names no larger cap: {err.strip()}")
                return None
            if self.rng.random() >= 0.3:
                return None
            again, said = c, c["said"]
            for _ in range(4):
                again = dict(c, cap=int((named_cap(said, again["cap"]) or 0) * 1.001) + 4096)
                code, out, err, peak, seconds = run(self.command(again, again["cap"], self.args.n, False))
                if code != 3 or "at least" not in said:
                    break
                said = err  # "at least" is what can be said before the weights are looked at
            if code:
                self.faults.append(f"{again}: the cap that was named does not work: exit {code}: {err.strip()}")
                return None
            c.update(again, code=0, peak=peak, seconds=seconds)
        elif code:
            self.faults.append(f"{c}: exit {code}: {err.strip()}")
            return None
        return json.loads(out)

    def look(self, c, doc, peak):
        """The promises that every run keeps."""
        c["peak"] = max(c["peak"], peak)
        if peak > c["cap"]:
            self.faults.append(f"{c}: peak {peak} over the cap")
        key = (c["model"], c["kv"], c["prompt"])
        known, found = self.tokens.get(key, []), doc["tokens"]
        if found[:len(known)] != known[:len(found)]:
            self.faults.append(f"{c}: tokens differ from the first run of {key}: {found} {known}")
        if len(found) > len(known):
            self.tokens[key] = found

    def one(self, c):
        doc = self.find_cap(c)
        if not doc:
            return
        c["peak"] = seen_peak(c["peak"], doc)
        self.look(c, doc, c["peak"])
        n_free = c["ctx"] - c["prompt"] + 1
        per_token = doc["timings"]["token_s"] / max(doc["timings"]["token_n"], 1)
        c["n"] = min(max(self.args.n, int(LONG / max(per_token, 1e-6)) + 2), n_free)
        self.time(c)

    def time(self, c):
        """How fast the combination is predicted to be, and is, now; the first time its peak counts."""
        tokens, seconds, repeats, said = 0, 0.0, 0, 0.0
        while seconds < ENOUGH and repeats < MAX_REPEATS:
            code, out, err, peak, took = run(self.command(c, c["cap"], c["n"], repeats == 0))
            if code:
                self.faults.append(f"{c}: exit {code} where it worked before: {err.strip()}")
                c["code"] = code
                return
            doc = json.loads(out)
            said = said or doc["predicted"]["tok_s"]
            if repeats == 0 and "times" not in c:
                c.update(own_peak=seen_peak(peak, doc), seconds=took, predicted=doc["predicted"], traffic=doc["traffic"], memory=doc["memory"])
            self.look(c, doc, seen_peak(peak, doc))
            tokens += doc["timings"]["token_n"]
            seconds += doc["timings"]["token_s"]
            repeats += 1
        c.setdefault("times", []).append(tokens / seconds)
        c.setdefault("ratios", []).append(said / c["times"][-1])
        c["token_s"] = min(seconds, c.get("token_s", seconds))

    def measure(self, i):
        if self.args.measure and i % self.args.measure == 0:
            subprocess.run([NIBBLE, "profile", "--hardware", "-q"], check=True, capture_output=True)

    def go(self, models):
        known = {m: info(m) for m in models}
        self.prompts = {m: prompt_of(m, known[m]["n_vocab"]) for m in models}
        for i in range(self.args.runs):
            self.measure(i)
            model = models[i % len(models)]
            c = self.draw(model, known[model]["bytes"])
            self.one(c)
            self.rows.append(c)
            if sys.stderr.isatty():
                print(f"\r{i + 1} of {self.args.runs}, {len(self.faults)} faults ", end="", file=sys.stderr)
        for _ in range(self.args.again):
            for i, c in enumerate(self.rows):
                self.measure(i)
                if c["code"] == 0:
                    self.time(c)
        if sys.stderr.isatty():
            print(file=sys.stderr)

    def report(self):
        ran = [c for c in self.rows if c["code"] == 0]
        kept = sum(c["peak"] <= c["cap"] for c in ran)
        print(f"{len(self.rows)} combinations: {len(ran)} ran, {sum(c['code'] == 3 for c in self.rows)} were refused (too small a cap)")
        print(f"peak within the cap: {kept}/{len(ran)}; the closest left {min((c['cap'] - c['peak']) / 2**20 for c in ran):.2f} MiB")
        print(f"same tokens: {len(self.tokens)} groups of model, cache format and prompt")
        errors = [abs(c["predicted"]["ram_peak"] - c["own_peak"]) / c["own_peak"] for c in ran]
        print(f"predicted against that run's own peak: median {statistics.median(errors):.1%}, worst {max(errors):.1%}")
        print(f"tok/s, each measured for {min(c['token_s'] for c in ran):.2f} s at least; predicted against measured:")
        for source in sorted({c["predicted"]["from"] for c in ran}):
            print_error(f"the first time, by {source}", [c["ratios"][0] for c in ran if c["predicted"]["from"] == source])
        for i in range(1, self.args.again + 1):
            print_error(f"time {i + 1}, when it ran before", [c["ratios"][i] for c in ran])
        if self.args.again:
            print_error("a combination's median", [statistics.median(c["ratios"]) for c in ran])
        for binds in sorted({c["predicted"]["binds"] for c in ran}):
            print_error(f"where {binds} binds", [statistics.median(c["ratios"]) for c in ran if c["predicted"]["binds"] == binds])
        if self.args.again:
            apart = [max(c["times"]) / min(c["times"]) - 1 for c in ran]
            print(f"one combination's own times: the fastest above the slowest by {statistics.median(apart):.1%} in the median, {max(apart):.1%} at most ({self.args.again + 1} times each)")
        for fault in self.faults:
            print("FAULT " + fault)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*")
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("-n", type=int, default=12)
    parser.add_argument("--kv", nargs="+", default=["f16", "f32"])
    parser.add_argument("--measure", type=int, default=0, metavar="N", help="measure the machine before every N runs")
    parser.add_argument("--again", type=int, default=0, metavar="N", help="measure every combination N times more, later")
    parser.add_argument("--cache", metavar="DIR", help="keep profiles and what runs took there, not in the user's cache")
    parser.add_argument("--json", help="keep every run in this file")
    args = parser.parse_args()
    if args.cache:
        os.environ["XDG_CACHE_HOME"] = os.path.abspath(args.cache)
    with tempfile.TemporaryDirectory() as folder:
        models = args.models
        if not models:
            small = os.path.join(folder, "llama-3.2-1b.4.gguf")
            subprocess.run([NIBBLE, "synth", "llama-3.2-1b", "--layers", "4", "-o", small, "-q"], check=True)
            models = ["smollm2", "gemma3-270m", small]
        sweep = Sweep(args)
        sweep.go(models)
        sweep.report()
        if args.json:
            with open(args.json, "w") as f:
                json.dump(sweep.rows, f, indent=1)
        sys.exit(1 if sweep.faults else 0)


if __name__ == "__main__":
    main()
