#!/usr/bin/env python3
"""Speed against budget: measured points on the predicted curve, and the bound by disk and memory. Writes an SVG and a
table.

  python3 bench/budget_plot.py MODEL [MODEL ...] -o docs/budget.svg [--points 8] [-n 32] [-c 256] [-t 2] [--scratch DIR]

For caps from the smallest that works to one that holds the whole model: `nibble plan` predicts, `nibble run` measures
(median of --rounds). The bound is min(disk rate / bytes not resident, memory's read rate / bytes of a token), with the
best rates of this machine, measured before each model (`nibble profile --hardware`). Run it on a quiet machine. One
panel a model."""
import argparse
import json
import math
import os
import statistics
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
NIBBLE = os.path.join(HERE, "..", "build", "nibble")
W, H, LEFT, TOP, GAP = 560, 300, 64, 44, 70


def nibble(*args, may_fail=False):
    done = subprocess.run([NIBBLE, *args], capture_output=True, text=True)
    if done.returncode and not may_fail:
        sys.exit(f"nibble {' '.join(args)}: exit {done.returncode}: {done.stderr.strip()}")
    return json.loads(done.stdout) if done.returncode == 0 else None


def caps_of(model, flags, points):
    """From the smallest cap that a plan is made for (by bisection to 1 MiB) to 1.1 of the whole."""
    whole = nibble("plan", model, *flags, "--json")["predicted"]["ram_peak"]
    low, high = 0, whole
    while high - low > 2**20:
        mid = (low + high) // 2
        fits = nibble("plan", model, *flags, "--ram", str(mid), "--json", may_fail=True)
        low, high = (low, mid) if fits else (mid, high)
    last = int(whole * 1.1)
    return [int(high + (last - high) * (i / (points - 1)) ** 1.5) for i in range(points)]


def measure(model, cap, args, flags, disk, ram):
    plan = nibble("plan", model, *flags, "--ram", str(cap), "--json")["predicted"]
    runs = []
    for _ in range(args.rounds):
        doc = nibble("run", model, *flags, "--ram", str(cap), "--tokens", "1,2,3,4", "-n", str(args.n), "--temp", "0", "--ignore-eos",
                     "--json", "-q")
        runs.append((doc["timings"]["predicted_per_second"], doc["memory"]["rss_peak"]))
    moved = plan["bytes_per_token"]
    bound = min(disk / moved["disk"] if moved["disk"] else 1e9, ram / moved["ram"] if moved["ram"] else 1e9)
    return {"cap": cap, "tok_s": statistics.median(r[0] for r in runs), "peak": max(r[1] for r in runs),
            "predicted": plan["tok_s"], "bound": bound, "disk_bytes": moved["disk"]}


def ticks(maximum):
    """Four to eight round numbers from 0 to `maximum`."""
    step = 10 ** math.floor(math.log10(maximum))
    while maximum / step < 4:
        step /= 2 if round(step / 10 ** math.floor(math.log10(step))) != 5 else 2.5
    return [i * step for i in range(int(maximum / step) + 1)]


def panel(out, y, name, rows):
    max_x, max_v = max(r["cap"] for r in rows), max(max(r["tok_s"], r["predicted"]) for r in rows) * 1.15
    px = lambda cap: LEFT + (W - LEFT - 20) * cap / max_x
    py = lambda v: y + H - (H - 30) * min(v, max_v) / max_v
    line = lambda key, style: out.append('<polyline fill="none" %s points="%s"/>' % (
        style, " ".join(f"{px(r['cap']):.1f},{py(r[key]):.1f}" for r in rows)))
    out.append(f'<text x="{LEFT}" y="{y + 14}" class="title">{name}</text>')
    for v in ticks(max_v):
        out.append(f'<line x1="{LEFT}" x2="{W - 20}" y1="{py(v):.1f}" y2="{py(v):.1f}" class="grid"/>'
                   f'<text x="{LEFT - 6}" y="{py(v) + 4:.1f}" text-anchor="end">{v:.4g}</text>')
    for mib in ticks(max_x / 2**20):
        out.append(f'<text x="{px(mib * 2**20):.1f}" y="{y + H + 16}" text-anchor="middle">{mib:.0f}</text>')
    line("bound", 'stroke="#999" stroke-dasharray="2 4" stroke-width="2"')
    line("predicted", 'stroke="#0072b2" stroke-width="2"')
    for r in rows:
        out.append(f'<circle cx="{px(r["cap"]):.1f}" cy="{py(r["tok_s"]):.1f}" r="4" fill="#d55e00"/>')
    out.append(f'<text x="{(W + LEFT) / 2}" y="{y + H + 34}" text-anchor="middle">budget (--ram), MiB; up: tokens a second</text>')


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+")
    parser.add_argument("-o", "--output", required=True)
    parser.add_argument("--points", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("-n", type=int, default=32)
    parser.add_argument("-c", type=int, default=256)
    parser.add_argument("-t", type=int, default=2)
    parser.add_argument("--scratch", help="keep packed files there, so that what is streamed is only read")
    args = parser.parse_args()
    flags = ["-c", str(args.c), "-t", str(args.t)] + (["--scratch", args.scratch] if args.scratch else [])
    height = TOP + len(args.models) * (H + GAP)
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {W} {height}" font-family="sans-serif" font-size="12">',
           '<style>.grid{stroke:#ddd}.title{font-size:14px;font-weight:bold}</style>'
           f'<rect width="{W}" height="{height}" fill="white"/>',
           f'<text x="{LEFT}" y="20">points: measured; line: predicted by the plan; dots: what disk and memory allow</text>']
    for i, model in enumerate(args.models):
        hw = nibble("profile", "--hardware", "--json")
        disk = max(r["read"]["best"] for r in hw["disk"]["rates"])
        ram = max(r["read"]["best"] for r in hw["memory"])
        name = os.path.basename(model).removesuffix(".gguf")
        rows = [measure(model, cap, args, flags, disk, ram) for cap in caps_of(model, flags, args.points)]
        print(f"{name}: disk {disk / 1e9:.2f} GB/s, memory {ram / 1e9:.1f} GB/s")
        print(f"{'cap MiB':>9} {'peak MiB':>9} {'from disk MiB':>14} {'bound':>8} {'predicted':>10} {'measured':>9}  of bound")
        for r in rows:
            print(f"{r['cap'] / 2**20:9.1f} {r['peak'] / 2**20:9.1f} {r['disk_bytes'] / 2**20:14.1f} {r['bound']:8.1f} "
                  f"{r['predicted']:10.1f} {r['tok_s']:9.1f}  {r['tok_s'] / r['bound']:.2f}", flush=True)
        panel(out, TOP + i * (H + GAP), name, rows)
    out.append("</svg>")
    with open(args.output, "w") as f:
        f.write("\n".join(out) + "\n")


if __name__ == "__main__":
    main()
