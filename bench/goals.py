#!/usr/bin/env python3
"""Measures every speed goal that this machine can measure: the required ratio, the ratio aimed at, and the measured
one.

  python3 bench/goals.py [--models DIR] [--python PY] [--python-avx2 PY] [--rounds 3] [--only WORD] [--markdown]

  --models       a folder with smollm2.gguf and gemma3.gguf; without it nibble's own names are used for nibble, and
                 nothing is compared with llama.cpp
  --python       a Python with llama_cpp for this CPU (bench/install-llama.sh)
  --python-avx2  one whose llama_cpp has AVX2 only (bench/install-llama.sh avx2)

Ratios divide by something measured in the same run: memory's read rate, the processor's register peak, llama.cpp,
one O_DIRECT read of the file. Kernels are timed by processor time, whole models by wall-clock time: those rows need a
quiet machine, and print the spread of their rounds. Needs `make all build/bench/bench_load build/bench/bench_peak`.
What cannot be measured here is listed with the reason."""
import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
from llama import run_json  # noqa: E402
from side_by_side import Pair  # noqa: E402

BUILD = os.path.join(HERE, "..", "build")
NIBBLE = os.path.join(BUILD, "nibble")


class Table:
    def __init__(self, only, markdown):
        self.only, self.markdown, self.missing = only, markdown, []
        cells = ("goal", "must", "aim", "measured", "verdict")
        if markdown:
            print("| " + " | ".join(cells) + " |\n|---|---|---|---|---|")
        else:
            print(f"{cells[0]:<66} {cells[1]:>6} {cells[2]:>6}  {cells[3]:<22} {cells[4]}")

    def wants(self, group):
        return not self.only or self.only in group

    def row(self, name, must, aim, values, lower=False):
        """values: one ratio a round; lower: smaller is better."""
        text = f" ({min(values):.2f}..{max(values):.2f})" if len(values) > 1 else ""
        self.write(name, must, aim, statistics.median(values), text, lower)

    def share(self, name, must, aim, point):
        """Of the read rate: the median over paired rounds, and its quarters."""
        low, high = point["peak_share_quarters"]
        self.write(name, must, aim, point["peak_share"], f" ({low:.2f}..{high:.2f})", False)

    def write(self, name, must, aim, value, spread, lower):
        good = (lambda limit: value <= limit) if lower else (lambda limit: value >= limit)
        verdict = "aim" if good(aim) else "must" if good(must) else "MISSED"
        text = f"{value:.2f}{spread}"
        if self.markdown:
            print(f"| {name} | {must:g} | {aim:g} | {text} | {verdict} |", flush=True)
        else:
            print(f"{name:<66} {must:>6g} {aim:>6g}  {text:<22} {verdict}", flush=True)

    def note(self, name, values):
        """No goal, but beside one."""
        print(f"    ({name}: {statistics.median(values):.2f} ({min(values):.2f}..{max(values):.2f}))", flush=True)

    def skip(self, name, why):
        self.missing.append(f"{name}: {why}")

    def end(self):
        if self.missing:
            print("\nnot measured here:")
        for line in self.missing:
            print("  " + line)


def used(point):
    name = point["map"] or point["rule"]
    return next(s for s in point["strategies"] if s["name"] == name)


def kernel_points(isa, threads, model=None, seconds=25, kernel_map=None):
    command = [NIBBLE, "bench", "--kernels", "--json", "-q", "-t", str(threads), "--seconds", str(seconds)]
    command += [model] if model else []
    command += ["--kernel-map", kernel_map] if kernel_map else []
    return run_json(command, {"NIBBLE_ISA": isa} if isa else None)


def point_of(shape, m):
    return next(p for p in shape["points"] if p["m"] == m)


def kernels(table, isas, threads, peaks):
    for isa in isas:
        for t in threads:
            shapes = kernel_points(isa, t)["shapes"]
            find = lambda f, n=4096, k=4096: next(s for s in shapes if (s["format"], s["n"], s["k"]) == (f, n, k))
            for f in ("u4g128", "q4_0"):
                table.share(f"one row, W4 ({f}), {isa}, {t} thread(s) / memory reads", 0.90, 0.95, used(point_of(find(f), 1)))
            for bits in (2, 3, 5, 6, 8):
                table.share(f"one row, W{bits} (u{bits}g128), {isa}, {t} thread(s) / memory reads", 0.84, 0.90,
                            used(point_of(find(f"u{bits}g128"), 1)))
            one, four, eight = (used(point_of(find("u4g128"), m)) for m in (1, 4, 8))
            # Up to 4 rows both are bound by memory, whose rate may have changed between the two: compare the shares of
            # it.
            table.row(f"time of 4 rows / one row, W4, {isa}, {t} thread(s)", 1.3, 1.1, [one["peak_share"] / four["peak_share"]],
                      lower=True)
            table.row(f"time of 8 rows / one row, W4, {isa}, {t} thread(s)", 2, 1.25, [eight["us"] / one["us"]], lower=True)
            if isa == "avx2" and "maddubs_avx2" in peaks:
                for m in (128, 512):
                    rate = used(point_of(find("u4g128"), m))["gmac_s"]
                    table.row(f"{m} rows, W4, avx2, {t} thread(s) / registers' vpmaddubsw peak", 0.60, 0.80,
                              [rate / t / peaks["maddubs_avx2"]])
            if isa == "avx512" and "dpbusd_avx512" in peaks:
                rate = used(point_of(find("u4g128"), 512))["gmac_s"]
                print(f"    (512 rows, W4, avx512, {t} thread(s): {rate / t / peaks['dpbusd_avx512']:.2f} of the registers' "
                      "vpdpbusd peak)")


def map_regret(table, model, threads):
    """A new map, measured again afterwards."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "map.json")
        run_json([NIBBLE, "profile", model, "--kernels", "-t", str(threads), "-o", path, "--json", "-q"])
        again = kernel_points(None, threads, model, 20, path)
    by = {a["choosing"]: a for a in again["resident"]}
    table.row(f"map's regret over the grid of {os.path.basename(model)}, mean", 0.03, 0.01, [by["the map"]["mean"]], lower=True)
    table.row("  the same, weighted by time", 0.03, 0.01, [by["the map"]["regret"]], lower=True)


def whole_models(table, args, threads):
    for isa, python in (("avx2", args.python_avx2), (None, args.python)):
        label = isa or "all instruction sets"
        if not python or not args.models:
            table.skip(f"SmolLM2 and Gemma 3 270M beside llama.cpp, {label}",
                       "needs --models and " + ("--python-avx2" if isa else "--python"))
            continue
        pair = Pair(NIBBLE, python, threads, isa)
        for model in ("smollm2", "gemma3"):
            path = os.path.join(args.models, model + ".gguf")
            for test, n, must, aim in (("pp", 512, 4, 6), ("tg", 128, 1.4, 1.7)):
                pairs = pair.rates(path, test, n, args.rounds)
                table.row(f"{model}, {'prompt of 512' if test == 'pp' else 'generation of 128'}, {threads} threads, {label} "
                          "/ llama.cpp", must, aim, [a / b for a, b in pairs])


def synthetic(table, shape, threads, n_layer=0):
    with tempfile.TemporaryDirectory(dir=os.environ.get("TMPDIR")) as folder:
        path = os.path.join(folder, shape + ".gguf")
        layers = ["--layers", str(n_layer)] if n_layer else []
        subprocess.run([NIBBLE, "synth", shape, "-o", path, "-q", *layers], check=True)
        runs = [run_json([NIBBLE, "bench", path, "-p", "0", "-n", "32", "-r", "4", "-t", str(threads), "--json", "-q"])
                for _ in range(5)]
        # The share of the read rate, measured in turns with the tokens: the median over pieces of 50 ms, and by means.
        name = f"{shape} Q4_0, generation, {threads} threads / memory reads"
        table.row(name + ", paired", 0.85, 0.92, [r["rows"][0]["peak_share"] for r in runs])
        table.note(name + ", mean / median", [r["rows"][0]["gb_s"] / r["read_gb_s_median"] for r in runs])


LOADED = re.compile(r"(\D.*?)\s{2,}([\d.]+)\s+([\d.]+)\s+([\d.]+)\.\.([\d.]+)\s+([\d.]+)\s+([\d.]+)\s+([-\d.]+)\s*$")


def load_rows(table, model, label, rounds):
    """Each opening against plain reads of the same file right before and after it."""
    out = subprocess.run([os.path.join(BUILD, "bench", "bench_load"), model, str(rounds)], capture_output=True, text=True)
    if out.returncode:
        table.skip(f"loading {label}", out.stderr.strip())
        return
    for line in out.stdout.splitlines():
        found = LOADED.match(line)
        if not found or "cold" not in found[1]:
            continue
        name, ratio, low, high = found[1].strip(), *map(float, found.group(3, 4, 5))
        limits = (1.05, 1.0) if "packed" in name else (1.2, 1.05)
        table.write(f"loading {label}, {name} / one O_DIRECT read", *limits, ratio, f" ({low:.2f}..{high:.2f})", True)
        table.row(f"  peak above what stays, MiB, {name}", 32, 8, [float(found[8])], lower=True)


def loading(table, small):
    with tempfile.TemporaryDirectory(dir=os.environ.get("TMPDIR")) as folder:
        path = os.path.join(folder, "1b.gguf")
        subprocess.run([NIBBLE, "synth", "llama-3.2-1b", "-o", path, "-q"], check=True)
        load_rows(table, path, "llama-3.2-1b Q4_0", 7)
    # With a small model headers, vocabulary and the start of threads take a large part.
    load_rows(table, small, os.path.basename(small).removesuffix(".gguf"), 11)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models")
    parser.add_argument("--python")
    parser.add_argument("--python-avx2")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("-t", type=int, default=0, help="threads of the whole-model rows; 0: one a core")
    parser.add_argument("--only", choices=["kernels", "map", "models", "synthetic", "loading"])
    parser.add_argument("--markdown", action="store_true")
    args = parser.parse_args()
    hw = run_json([NIBBLE, "hw", "--json"])
    threads = args.t or hw["cores"]
    model = os.path.join(args.models, "smollm2.gguf") if args.models else "smollm2"
    print(f"{hw['cpu']}, {hw['cores']} cores, {', '.join(hw['features'])}; load {os.getloadavg()[0]:.1f}")
    table = Table(args.only, args.markdown)
    if table.wants("kernels"):
        peaks = run_json([os.path.join(BUILD, "bench", "bench_peak")])
        kernels(table, [i for i in ("avx2", "avx512") if i in hw["kernels"]], sorted({1, threads}), peaks)
        if "amx" not in hw["kernels"]:
            table.skip("products with AMX", "this processor has none; build/bench/bench_amx where it has")
    if table.wants("map"):
        map_regret(table, model, threads)
    if table.wants("synthetic"):
        synthetic(table, "llama-3.2-1b", threads)
    if table.wants("loading"):
        loading(table, model)
    if table.wants("models"):
        whole_models(table, args, threads)
        if hw["cores"] < 16:
            table.skip("llama-3-8b beside llama.cpp with 16 threads", f"{hw['cores']} cores here")
    table.end()


if __name__ == "__main__":
    main()
