#!/usr/bin/env python3
"""The cost of each precision: perplexity, KL divergence from 16-bit activations over the file's weights, and
HellaSwag (MCAP, tables 8 to 12), for weights of 8 to 2 bits, activations of 16, 8 and 4, and MCAP's mixtures.

  python3 bench/precision.py MODEL --text FILE [--hellaswag FILE] [--profile FILE] [--chunks 6] [-t 2] [--nibble PATH]

Every row is an ordinary plan, written to a temporary folder: all matrices in one format, embedding and output head
included, activations by layer. Weighted formats (w) round by the inputs of products, which `nibble profile MODEL
--costs` measured before. --profile: of `nibble profile MODEL`, for MCAP's mixtures. Figures do not depend on the
threads."""
import argparse
import json
import math
import os
import re
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
from llama import run_json  # noqa: E402

TAU = 0.7


class Model:
    def __init__(self, args, folder):
        self.args, self.folder = args, folder
        path = os.path.join(folder, "plan.json")
        subprocess.run([args.nibble, "plan", args.model, "-c", "512", "-o", path, "-q"], check=True, stdout=subprocess.DEVNULL)
        with open(path) as f:
            self.plan = json.load(f)
        self.tensors = {}
        for t in run_json([args.nibble, "info", args.model, "--tensors", "--json"])["tensors"]:
            found = re.match(r"blk\.(\d+)\.", t["name"])
            block = f"layer.{found[1]}" if found else "head" if t["name"] == "output.weight" else "embed"
            if len(t["shape"]) == 2:
                self.tensors.setdefault(block, []).append(t["shape"])

    def bytes_of(self, block, recipe):
        """Of the block's matrices in a format such as u4g64aw: codes, and a scale (and minimum) for each group."""
        bits, group, more = re.fullmatch(r"u(\d)g(\d+)(a?h?w?)", recipe).groups()
        each = 4 if "a" in more else 2
        return sum(n * k * int(bits) // 8 + n * math.ceil(k / int(group)) * each
                   for n, k in self.tensors.get(block, []))

    def write(self, recipe, activation):
        """activation: bits for every block, or a function of the layer's number."""
        plan = json.loads(json.dumps(self.plan))
        for block in plan["blocks"]:
            layer = int(block["name"].split(".")[1]) if block["name"].startswith("layer.") else None
            bits = activation(layer) if callable(activation) else activation
            block["activation"] = f"a{bits}"
            if recipe != "file" and block["slices"]:
                block["slices"] = [{"format": recipe, "bytes": self.bytes_of(block["name"], recipe), "tier": "ram"}]
        path = os.path.join(self.folder, "edited.json")
        with open(path, "w") as f:
            json.dump(plan, f)
        return path

    def score(self, recipe, activation, base):
        a = self.args
        common = ["--plan", self.write(recipe, activation), "-t", str(a.t), "--json", "-q", "--no-learn"]
        out = run_json([a.nibble, "eval", a.model, "--ppl", a.text, "--chunks", str(a.chunks), "--kld-base", base, *common])
        tasks = None
        if a.hellaswag:
            tasks = run_json([a.nibble, "eval", a.model, "--hellaswag", a.hellaswag, "--tasks", str(a.tasks), *common])
        return out, tasks


def mixture(profile, low):
    """16 bits for the layers whose score is at least TAU, and for blocks that are no layers."""
    return lambda layer: 16 if layer is None or profile["score"][layer] >= TAU else low


def row(model, base, name, recipe, activation, hellaswag):
    saved = model.args.hellaswag
    model.args.hellaswag = saved if hellaswag else None
    out, tasks = model.score(recipe, activation, base)
    model.args.hellaswag = saved
    kld = out.get("kld")
    n = tasks["tasks"] if tasks else 0
    share = tasks["hellaswag"] / 100 if tasks else 0
    error = math.sqrt(share * (1 - share) / n) if n else 0
    print(f"| {name} | {out['ppl']:.3f} | {kld['kld'] if kld else 0:.4f} | "
          f"{100 * kld['same_top'] if kld else 100:.1f} % | "
          + (f"{100 * share:.1f} ± {100 * error:.1f} % |" if n else "- |"))
    sys.stdout.flush()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--text", required=True)
    parser.add_argument("--hellaswag")
    parser.add_argument("--profile")
    parser.add_argument("--chunks", type=int, default=6)
    parser.add_argument("--tasks", type=int, default=400)
    parser.add_argument("--formats", default="u8g64,u7g64,u6g64,u5g64,u4g64,u4g64w,u4g64aw,u3g32w,u2g16w")
    parser.add_argument("--tasks-for", default="u4g64,u4g64aw,u3g32w", help="formats that HellaSwag is scored for")
    parser.add_argument("-t", type=int, default=2)
    parser.add_argument("--nibble", default=os.path.join(HERE, "..", "build", "nibble"))
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        model, base = Model(args, folder), os.path.join(folder, "base.kld")
        tasks = f", {args.tasks} tasks" if args.hellaswag else ""
        print(f"{os.path.basename(args.model)}, {args.chunks} chunks of 512 tokens{tasks}\n")
        print("| weights, activations | perplexity | KL, nats | same first token | HellaSwag |\n|---|---|---|---|---|")
        row(model, base, "as in the file, a16 (KL is from this)", "file", 16, True)
        row(model, base, "as in the file, a8", "file", 8, True)
        row(model, base, "as in the file, a4", "file", 4, True)
        if args.profile:
            with open(args.profile) as f:
                profile = json.load(f)
            for low in (8, 4):
                row(model, base, f"as in the file, MCAP: a16 from {TAU} on, else a{low}", "file", mixture(profile, low), True)
        for recipe in args.formats.split(","):
            for bits in (16, 8, 4):
                row(model, base, f"{recipe}, a{bits}", recipe, bits, bits == 8 and recipe in args.tasks_for.split(","))


if __name__ == "__main__":
    main()
