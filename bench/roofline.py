#!/usr/bin/env python3
"""Draws the launches that `nibble bench --trace --json` measured as a roofline chart: an SVG with a panel for each
test.

  python3 bench/roofline.py NAME=FILE [NAME=FILE ...] --top 870 -o docs/gpu-roofline.svg
  python3 bench/roofline.py --kernels FILE --top 870 -o docs/gpu-rooflines.svg

The x axis is operations for a byte that a launch moves, the y axis operations a second. The sloping roof is the rate
that the run itself measured for reading weights, the flat one is --top (TFLOP/s), a peak that was measured before. A
circle is a row of the table that multiplies; its area is its share of the launches' time. Bytes may be lower bounds
(bytes_at_least): the true place of such circles is further left, and they are dashed.

FILE of the second form is what `bench_cuda roofs` printed. It has a panel for each number of generated rows, with the
products and the attention of so many sequences, and the table is printed too. More than 64 rows of attention are
several launches of 64."""
import argparse
import json
import math

W, H, LEFT, TOP, GAP, RIGHT, COLUMNS = 480, 240, 46, 30, 54, 12, 2
X, Y = [-0.5, 3.5], [-3.0, 3.2]  # powers of ten: operations a byte, TFLOP/s
STYLE = ("<style>text{font:12px sans-serif;fill:#222}.title{font-weight:bold}.paper{fill:#fff}.grid{stroke:#ddd}"
         ".roof{fill:none;stroke:#444;stroke-width:2}@media(prefers-color-scheme:dark){text{fill:#d8dee6}"
         ".paper{fill:#0d1117}.grid{stroke:#2b323b}.roof{stroke:#aab2bd}}</style>"
         '<rect width="100%" height="100%" class="paper"/>')
LAUNCH_ROWS = 64  # rows of a launch of attention
COLORS = ["#2f8fd8", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#888"]


def px(flop_byte):
    return LEFT + (W - LEFT - RIGHT) * (math.log10(flop_byte) - X[0]) / (X[1] - X[0])


def py(tflops):
    return H - H * (math.log10(tflops) - Y[0]) / (Y[1] - Y[0])


def roofs(out, read_gb_s, top):
    left, ridge, right = 10 ** X[0], top * 1e3 / read_gb_s, 10 ** X[1]
    points = [(x, min(top, x * read_gb_s / 1e3)) for x in (left, ridge, right)]
    out.append('<polyline class="roof" points="%s"/>' % " ".join(f"{px(x):.1f},{py(v):.1f}" for x, v in points))
    out.append(f'<text x="{px(ridge) - 120:.0f}" y="{py(top) - 5:.0f}">{top:.0f} TFLOP/s, {read_gb_s / 1e3:.2f} TB/s</text>')


def axes(out):
    for power in range(math.ceil(X[0]), math.floor(X[1]) + 1):
        x = px(10 ** power)
        out.append(f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="0" y2="{H}"/>'
                   f'<text x="{x:.1f}" y="{H + 15}" text-anchor="middle">{10 ** power}</text>')
    for power in range(math.ceil(Y[0]), math.floor(Y[1]) + 1):
        v = py(10 ** power)
        out.append(f'<line class="grid" x1="{LEFT}" x2="{W - RIGHT}" y1="{v:.1f}" y2="{v:.1f}"/>'
                   f'<text x="{LEFT - 6}" y="{v + 4:.1f}" text-anchor="end">{10.0 ** power:g}</text>')


def panel(out, x, y, name, trace, top, colors):
    rows = [r for r in trace["rows"] if r["macs"] > 0 and r["bytes"] > 0 and r["seconds"] > 0]
    out.append(f'<g transform="translate({x} {y})"><text x="{LEFT}" y="-10" class="title">{name}</text>')
    axes(out)
    roofs(out, trace["read_gb_s"], top)
    for r in sorted(rows, key=lambda r: -r["seconds"]):
        flop = 2 * r["macs"]
        at = (px(flop / r["bytes"]), py(flop / r["seconds"] * 1e-12))
        radius = 3 + 30 * math.sqrt(r["seconds"] / trace["launches_s"] / math.pi)
        color = colors.setdefault(r["op"], COLORS[len(colors) % len(COLORS)])
        dashes = ' stroke-dasharray="3 2"' if r["bytes_at_least"] else ""
        out.append(f'<circle cx="{at[0]:.1f}" cy="{at[1]:.1f}" r="{radius:.1f}" fill="{color}" fill-opacity=".45" '
                   f'stroke="{color}"{dashes}><title>{r["op"]}</title></circle>')
    out.append("</g>")


def read_kernels(path):
    """Rates of reads in GB/s, and rows (name, size, rows, operations, bytes, seconds)."""
    rate, rows = 0, []
    with open(path, encoding="utf-8") as f:
        for line in f:
            if not line.startswith("roof\t"):
                continue
            name, size, n_row, flop, moved, us = line.rstrip("\n").split("\t")[1:]
            if name == "read":
                rate = float(moved) * 1e-9
            else:
                rows.append((name, int(size), int(n_row), float(flop), float(moved), float(us) * 1e-6))
    return rate, rows


def kernel_panels(path):
    """The panels of a file: (title, rate, rows). Attention of more rows than a launch takes is several launches."""
    rate, rows = read_kernels(path)
    panels = []
    for n_row in sorted({r[2] for r in rows}):
        here = [r for r in rows if r[2] == n_row]
        if not any(r[0].startswith("attention") for r in here):
            several = n_row // LAUNCH_ROWS
            here += [(r[0], r[1], n_row, *(v * several for v in r[3:])) for r in rows
                     if r[0].startswith("attention") and r[2] == LAUNCH_ROWS]
        panels.append((f"{n_row} generated rows", rate, here))
    return panels


def kernel_panel(out, x, y, name, rate, rows, top, colors):
    out.append(f'<g transform="translate({x} {y})"><text x="{LEFT}" y="-10" class="title">{name}</text>')
    axes(out)
    roofs(out, rate, top)
    for kind, size, n_row, flop, moved, seconds in rows:
        color = colors.setdefault(kind, COLORS[len(colors) % len(COLORS)])
        at = (px(flop / moved), py(flop / seconds * 1e-12))
        share = flop / seconds / min(top * 1e12, flop / moved * rate * 1e9)
        out.append(f'<circle cx="{at[0]:.1f}" cy="{at[1]:.1f}" r="6" fill="{color}" fill-opacity=".75" stroke="{color}">'
                   f"<title>{kind}, {size}: {share:.2f} of the roof</title></circle>")
        print(f"| {n_row} | {kind} | {size:,} | {seconds * 1e6:.1f} | {moved / seconds * 1e-9:,.0f} | "
              f"{flop / seconds * 1e-12:.3g} | {share:.2f} |")
    out.append("</g>")


def key(out, y, colors):
    for i, (op, color) in enumerate(colors.items()):
        x, line = LEFT + i % 5 * 170, y + i // 5 * 18
        out.append(f'<circle cx="{x}" cy="{line - 4}" r="5" fill="{color}" fill-opacity=".45" stroke="{color}"/>'
                   f'<text x="{x + 10}" y="{line}">{op}</text>')


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("runs", nargs="*", metavar="NAME=FILE")
    p.add_argument("--kernels", metavar="FILE")
    p.add_argument("--top", type=float, required=True)
    p.add_argument("-o", "--output", required=True)
    args = p.parse_args()
    panels = []
    for run in args.runs:
        name, path = run.split("=", 1)
        with open(path, encoding="utf-8") as f:
            panels += [(panel, f'{name}, {r["test"]}', r["launches"]) for r in json.load(f)["rows"]]
    if args.kernels:
        print("| rows | kernel | outputs, position | µs | GB/s | TFLOP/s | of the roof |\n|---|---|---|---|---|---|---|")
        panels += [(kernel_panel, *what) for what in kernel_panels(args.kernels)]
        if not args.runs:
            X[:], Y[:] = (0.2, 3.2), (0.2, 3.2)
    if not panels:
        p.error("nothing to draw: NAME=FILE or --kernels FILE")
    out, colors = [], {}
    for i, (draw, *what) in enumerate(panels):
        draw(out, i % COLUMNS * W, TOP + i // COLUMNS * (H + GAP), *what, args.top, colors)
    y = TOP + (len(panels) + COLUMNS - 1) // COLUMNS * (H + GAP)
    share = "" if args.kernels else "; a circle's area: its share of the launches' time"
    out.append(f'<text x="{LEFT}" y="{y}">Right: operations for a byte that is moved; up: TFLOP/s{share}</text>')
    key(out, y + 24, colors)
    width, height = W * min(COLUMNS, len(panels)), y + 24 + (len(colors) + 4) // 5 * 18
    with open(args.output, "w", encoding="utf-8") as f:
        f.write(f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}">'
                + STYLE + "\n".join(out) + "</svg>\n")


if __name__ == "__main__":
    main()
