#!/usr/bin/env python3
"""The frontier of latency and throughput, as in figure 1 of FlexGen. Writes an SVG and a table.

  python3 bench/frontier_plot.py -o docs/frontier.svg --workload 512x32x1000 'f16: opt-30b.gguf --vram 16G' \\
      'kv4: opt-30b.gguf --vram 16G --kv kv4' [--measured points.txt]

Each curve is LABEL: MODEL and options of `nibble plan MODEL --workload ... --frontier`: the fastest plan for each latency
of an answer. A line of the file with measured points is LABEL LATENCY_S TOK_S."""
import argparse
import math
import shlex

from budget_plot import nibble

W, H, LEFT, TOP, RIGHT, BOTTOM = 640, 400, 64, 40, 20, 48
COLORS = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9"]


def decades(values):
    """Powers of ten around the values."""
    return [10.0**i for i in range(math.floor(math.log10(min(values))), math.ceil(math.log10(max(values) * 1.001)) + 1)]


def place(value, ticks, begin, end):
    first, last = math.log10(ticks[0]), math.log10(ticks[-1])
    return begin + (end - begin) * (math.log10(value) - first) / max(last - first, 1e-9)


def draw(curves, measured):
    points = [p for c in curves.values() for p in c] + [p for m in measured.values() for p in m]
    across, up = decades([p[0] for p in points]), decades([p[1] for p in points])
    px = lambda s: place(s, across, LEFT, W - RIGHT)
    py = lambda v: place(v, up, H - BOTTOM, TOP)
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {W} {H}" font-family="sans-serif" font-size="12">',
           f'<style>.grid{{stroke:#ddd}}</style><rect width="{W}" height="{H}" fill="white"/>',
           f'<text x="{LEFT}" y="20">lines: the plans\' predictions; points: measured rates</text>']
    for s in across:
        out.append(f'<line x1="{px(s):.1f}" x2="{px(s):.1f}" y1="{TOP}" y2="{H - BOTTOM}" class="grid"/>'
                   f'<text x="{px(s):.1f}" y="{H - BOTTOM + 16}" text-anchor="middle">{s:g}</text>')
    for v in up:
        out.append(f'<line x1="{LEFT}" x2="{W - RIGHT}" y1="{py(v):.1f}" y2="{py(v):.1f}" class="grid"/>'
                   f'<text x="{LEFT - 6}" y="{py(v) + 4:.1f}" text-anchor="end">{v:g}</text>')
    for i, (label, curve) in enumerate(curves.items()):
        color = COLORS[i % len(COLORS)]
        line = " ".join(f"{px(s):.1f},{py(v):.1f}" for s, v in curve)
        out.append(f'<polyline fill="none" stroke="{color}" stroke-width="2" points="{line}"/>'
                   f'<text x="{LEFT + 8}" y="{TOP + 16 + 16 * i}" fill="{color}">{label}</text>')
        for s, v in measured.get(label, []):
            out.append(f'<circle cx="{px(s):.1f}" cy="{py(v):.1f}" r="4" fill="{color}"/>')
    out.append(f'<text x="{(W + LEFT) / 2}" y="{H - 12}" text-anchor="middle">seconds of an answer; up: tokens a second</text></svg>')
    return "\n".join(out) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("curves", nargs="+")
    parser.add_argument("-o", "--output", required=True)
    parser.add_argument("--workload", required=True)
    parser.add_argument("--measured")
    args = parser.parse_args()
    curves, measured = {}, {}
    for text in args.curves:
        label, _, rest = text.partition(":")
        plan = nibble("plan", *shlex.split(rest), "--workload", args.workload, "--frontier", "--json")
        curves[label] = [(p["predicted"]["latency_s"], p["predicted"]["tok_s"]) for p in plan["frontier"]]
        for p in plan["frontier"]:
            print(f"{label:16} {p['predicted']['latency_s']:10.2f} s {p['predicted']['tok_s']:10.2f} tok/s "
                  f"{p['schedule']['block']:6} together, {p['binds']}{' (guessed rates)' if p['guessed'] else ''}")
    for line in open(args.measured) if args.measured else []:
        label, latency, tok_s = line.rsplit(maxsplit=2)
        measured.setdefault(label, []).append((float(latency), float(tok_s)))
    with open(args.output, "w") as f:
        f.write(draw(curves, measured))


if __name__ == "__main__":
    main()
