#!/usr/bin/env python3
"""Strategies from end to end (ADAngel, section 6.4): prompt, generation and batched decoding of a model with one family
of kernels everywhere, with the paper's rule, nibble's rule, and the measured map; and 8-bit beside 16-bit activations.

  python3 bench/strategies.py MODEL [-t 2] [--isa avx2] [--seconds 30] [-np 1,2,4,8,16,32,64] [-p 512] [-n 64]
                              [--processor]

Every strategy's time for every product of the model is measured first (nibble bench --kernels). From it kernel maps are
written, one for each choice, and the model runs with each (nibble bench --kernel-map). All give the same bits, so only
time differs. If a family has no kernel for a product, the fastest of Padding computes it. Bitwise needs the weights
in planes (docs/kernels.md), so its map packs them so. Run it on a quiet machine; on a busy one --processor gives tokens
a second of processor time, the best of the repeats (one thread: several wait for each other by spinning)."""
import argparse
import json
import os
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
from llama import run_json  # noqa: E402

CHOICES = ("padding", "split", "bitwise", "the paper's rule")


def family(name):
    return name.split("/")[1].split(".")[0]


def pick(point, choice):
    """The fastest strategy of the family that the choice takes at this point; Padding where it has none."""
    m = int(point["rows"].split("-")[-1] or 1 << 30)
    wanted = choice if choice != "the paper's rule" else "bitwise" if m <= 8 else "split" if m <= 64 else "padding"
    for name in (wanted, "padding"):
        some = [s for s in point["strategies"] if family(s["name"]) == name]
        if some:
            return min(some, key=lambda s: s["us"])["name"]
    return None


def write_map(base, shapes, choice, path):
    """base: a map of this machine, whose products are replaced."""
    planes = choice in ("bitwise", "the paper's rule")
    names = {(s["n"], s["k"], s["format"]) for s in shapes}
    products = []
    for s in shapes:
        in_planes = s["format"].endswith("p") and (s["n"], s["k"], s["format"][:-1]) in names or ".planes" in s["format"]
        has_planes = any((s["n"], s["k"], s["format"] + end) in names for end in ("p", ".planes"))
        entry = {"n": s["n"], "k": s["k"], "format": s["format"], "activation": s["activation"], "rows": {}}
        if has_planes and planes:
            entry["packing"] = "planes"
        elif in_planes == planes or not has_planes:
            entry["rows"] = {p["rows"]: pick(p, choice) for p in s["points"] if pick(p, choice)}
        products.append(entry)
    with open(path, "w") as f:
        json.dump({**base, "products": products}, f)


def speeds(args, env, title, more):
    command = [args.nibble, "bench", args.model, "-t", str(args.t), "-r", str(args.r), "--json", "-q", "--no-learn", *more]
    one = run_json([*command, "-p", str(args.p), "-n", str(args.n)], env)["rows"]
    # The whole head: for greedy sequences one kernel would otherwise estimate it, whatever the map says.
    many = run_json([*command, "-p", "16", "-n", str(args.n), "-np", args.np, "--shortlist", "off"], env)["rows"]
    rows = one + [r for r in many if r["test"].startswith("tg")]
    cells = [f"{1 / r['cpu_s'] if args.processor else r['tok_s']:.1f}" for r in rows]
    print(f"| {title} | " + " | ".join(cells) + " |")
    sys.stdout.flush()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--isa")
    parser.add_argument("-t", type=int, default=2)
    parser.add_argument("-p", type=int, default=512)
    parser.add_argument("-n", type=int, default=64)
    parser.add_argument("-r", type=int, default=3)
    parser.add_argument("-np", default="1,2,4,8,16,32,64")
    parser.add_argument("--processor", action="store_true")
    parser.add_argument("--seconds", type=float, default=30)
    parser.add_argument("--nibble", default=os.path.join(HERE, "..", "build", "nibble"))
    args = parser.parse_args()
    env = {"NIBBLE_ISA": args.isa} if args.isa else None
    common = ["-t", str(args.t), "--seconds", str(args.seconds), "--json", "-q"]
    with tempfile.TemporaryDirectory() as folder:
        measured = os.path.join(folder, "measured.json")
        run_json([args.nibble, "profile", args.model, "--kernels", "-o", measured, *common], env)
        grid = run_json([args.nibble, "bench", "--kernels", args.model, "--kernel-map", measured, *common], env)
        with open(measured) as f:
            base = json.load(f)
        of = "tokens a second of processor time" if args.processor else "tokens a second"
        print(f"{os.path.basename(args.model)}, {grid['isa']}, {args.t} threads ({grid['cpu']}), {of}\n")
        heads = [f"prompt of {args.p}", f"{args.n} tokens"] + [f"{n} sequence{'s' * (n != '1')}" for n in args.np.split(",")]
        print("| choosing | " + " | ".join(heads) + " |\n|---" + "|---" * len(heads) + "|")
        for choice in CHOICES:
            path = os.path.join(folder, "map.json")
            write_map(base, grid["shapes"], choice, path)
            name = choice if choice == "the paper's rule" else f"{choice} everywhere it can"
            speeds(args, env, name, ["--kernel-map", path])
        speeds(args, env, "nibble's rule", ["--kernel-map", "none"])
        speeds(args, env, "the map", ["--kernel-map", measured])
        speeds(args, env, "the map, 16-bit activations", ["--kernel-map", measured, "--activation", "a16"])
        speeds(args, env, "the map, 4-bit activations", ["--kernel-map", measured, "--activation", "a4"])


if __name__ == "__main__":
    main()
