#!/usr/bin/env python3
"""The tables of docs/paper-adangel.md, measured on this machine: the loss of fixed strategies, the paper's rule,
nibble's rule and the map against the fastest, and the crossovers.

  python3 bench/paper_table.py [MODEL ...] [--isa avx2 --isa avx512pop] [-t 2] [--seconds 40]

Without a MODEL: one layer's widths of an 8B model with 2 to 8 bits a weight. For a MODEL a map is made first, into
a temporary file, and measured again by `nibble bench --kernels`."""
import argparse
import os
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
from side_by_side import run_json  # noqa: E402


def crossovers(shape):
    """"1-4 padding.direct, 5- padding.blocked" from the fastest of each bucket."""
    runs = []
    for point in shape["points"]:
        first, last = (point["rows"].split("-") + [point["rows"]])[:2] if "-" in point["rows"] else (point["rows"],) * 2
        if runs and runs[-1][2] == point["fastest"]:
            runs[-1][1] = last
        else:
            runs.append([first, last, point["fastest"]])
    return ", ".join(f"{a}{'' if a == b else '-' + b} {name}" for a, b, name in runs)


def one(args, isa, model):
    env = {"NIBBLE_ISA": isa} if isa else None
    common = ["--json", "-q", "-t", str(args.t), "--seconds", str(args.seconds)]
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "map.json")
        extra = ["--kernel-map", "none"]
        if model:
            run_json([args.nibble, "profile", model, "--kernels", "-o", path, *common], env)
            extra = ["--kernel-map", path]
        data = run_json([args.nibble, "bench", "--kernels", *([model] if model else []), *common, *extra], env)
    points = sum(len(s["points"]) for s in data["shapes"])
    name = os.path.basename(model) if model else "8B widths, W2 to W8"
    print(f"\n### {name}, {data['isa']}, {data['threads']} threads ({data['cpu']})\n")
    print("| choosing | whole grid, ms | regret of the whole | mean of the points | worst point | points it can do |")
    print("|---|---|---|---|---|---|")
    for a in data["ablations"]:
        print(f"| {a['choosing']} | {a['seconds'] * 1e3:.1f} | {a['regret']:.1%} | {a['mean']:.1%} | {a['worst']:.1%} "
              f"| {a['able']} of {points} |")
    print("\n| product | fastest by rows |\n|---|---|")
    for s in data["shapes"]:
        print(f"| {s['format']} {s['n']} × {s['k']} | {crossovers(s)} |")
    sys.stdout.flush()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*")
    parser.add_argument("--isa", action="append")
    parser.add_argument("-t", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=40)
    parser.add_argument("--nibble", default=os.path.join(HERE, "..", "build", "nibble"))
    args = parser.parse_args()
    for isa in args.isa or [None]:
        for model in args.models or [None]:
            one(args, isa, model)


if __name__ == "__main__":
    main()
