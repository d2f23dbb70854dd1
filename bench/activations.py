#!/usr/bin/env python3
"""The cost of activations and keys and values in few bits (COMET, tables 1 and 2): perplexity, KL divergence from
16-bit activations over the same weights with f16 keys and values, and HellaSwag, for a model, for the same with
outlier channels first (--permute), for rotations in the weights (--rotate), and for rotated formats (h).

  python3 bench/activations.py MODEL --text FILE [--hellaswag FILE] [--chunks 12] [--weights u4g64] [--share 16]

Every row is an ordinary plan with activations that are really computed in these bits. The permuted and rotated files
are made first, in a temporary folder; a model that cannot be rotated has no such rows. Figures do not depend on the
threads."""
import argparse
import math
import os
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
from llama import run_json  # noqa: E402
from precision import Model  # noqa: E402


class Table:
    def __init__(self, args, folder):
        self.args, self.folder, self.models = args, folder, {}
        self.base = os.path.join(folder, "base.kld")

    def model(self, path):
        if path not in self.models:
            args = argparse.Namespace(**vars(self.args))
            args.model = path
            folder = tempfile.mkdtemp(dir=self.folder)
            self.models[path] = Model(args, folder)
        return self.models[path]

    def row(self, name, path, recipe, activation, kv, tasks):
        a = self.args
        plan = self.model(path).write(recipe, activation)
        common = ["--plan", plan, "--kv", kv, "-t", str(a.t), "--json", "-q", "--no-learn"]
        out = run_json([a.nibble, "eval", path, "--ppl", a.text, "--chunks", str(a.chunks), "--kld-base", self.base, *common])
        found = run_json([a.nibble, "eval", path, "--hellaswag", a.hellaswag, "--tasks", str(a.tasks), *common]) if tasks and a.hellaswag else None
        kld, share = out.get("kld"), found["hellaswag"] / 100 if found else 0
        error = math.sqrt(share * (1 - share) / found["tasks"]) if found else 0
        print(f"| {name} | {kv} | {out['ppl']:.3f} | " + (f"{kld['kld']:.4f} | {100 * kld['same_top']:.1f} %" if kld else "0 | 100 %")
              + (f" | {100 * share:.1f} ± {100 * error:.1f} % |" if found else " | - |"))
        sys.stdout.flush()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--text", required=True)
    parser.add_argument("--hellaswag")
    parser.add_argument("--chunks", type=int, default=12)
    parser.add_argument("--tasks", type=int, default=400)
    parser.add_argument("--weights", default="u4g64", help="format of all matrices, rounded to nearest when the model is loaded")
    parser.add_argument("--share", default="16", help="percentage of the multiply-adds with 8 bits in the permuted file")
    parser.add_argument("--kv", default="f16,kv4")
    parser.add_argument("-t", type=int, default=2)
    parser.add_argument("--nibble", default=os.path.join(HERE, "..", "build", "nibble"))
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        table, moved, w = Table(args, folder), os.path.join(folder, "permuted.gguf"), args.weights
        made = run_json([args.nibble, "quantize", args.model, "-o", moved, "--permute", "--a8-share", args.share, "--json", "-q"])
        turned, both = os.path.join(folder, "rotated.gguf"), os.path.join(folder, "both.gguf")
        rotates = subprocess.run([args.nibble, "quantize", args.model, "-o", turned, "--rotate", "-q"], stdout=subprocess.DEVNULL).returncode == 0
        if rotates:
            run_json([args.nibble, "quantize", turned, "-o", both, "--permute", "--a8-share", args.share, "--json", "-q"])
        print(f"{os.path.basename(args.model)}, {args.chunks} chunks of 512 tokens; {made['first']} channels first, "
              f"{made['share8']:.1f} % of the multiply-adds in 8 bits\n")
        print("| weights, activations | keys, values | perplexity | KL, nats | same first token | HellaSwag |\n|---|---|---|---|---|---|")
        rows = [(f"{w}, a16", args.model, w, 16), (f"{w}, a8", args.model, w, 8), (f"{w}, a4", args.model, w, 4),
                (f"{w} permuted, a4", moved, w, 4), (f"{w} permuted, ax", moved, w, "x"),
                (f"{w}h rotated, a16", args.model, w + "h", 16), (f"{w}h rotated, a8", args.model, w + "h", 8),
                (f"{w}h rotated, a4", args.model, w + "h", 4), (f"{w}h permuted and rotated, ax", moved, w + "h", "x")]
        if rotates:
            rows += [(f"{w}, rotations in the weights, a16", turned, w, 16), (f"{w}, rotations in the weights, a4", turned, w, 4),
                     (f"{w}h, both rotations, a4", turned, w + "h", 4), (f"{w}, rotations in the weights, permuted, ax", both, w, "x")]
        for kv in args.kv.split(","):
            for name, path, recipe, activation in rows:
                table.row(name, path, recipe, activation, kv, kv == "f16" or activation == "x")


if __name__ == "__main__":
    main()
