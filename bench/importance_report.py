#!/usr/bin/env python3
"""Reports on a model's importance profile, and how well it predicts measured costs.

    nibble profile MODEL --costs
    bench/importance_report.py PROFILE.json COSTS.json

Both files are in $XDG_CACHE_HOME/nibble/importance. Prints the distribution of MCAP's scores, how stable the
first layers are for fewer prompts, rank correlations (Spearman) of every signal with the others and with the
measured KL divergence of each change of one layer, and what several layers left out together cost. Standard
library only."""
import json
import random
import sys


def ranks(x):
    order = sorted(range(len(x)), key=lambda i: x[i])
    out = [0.0] * len(x)
    i = 0
    while i < len(order):
        j = i
        while j < len(order) and x[order[j]] == x[order[i]]:
            j += 1
        for k in range(i, j):
            out[order[k]] = (i + j - 1) / 2
        i = j
    return out


def spearman(x, y):
    a, b = ranks(x), ranks(y)
    n = len(a)
    ma, mb = sum(a) / n, sum(b) / n
    top = sum((p - ma) * (q - mb) for p, q in zip(a, b))
    bottom = (sum((p - ma) ** 2 for p in a) * sum((q - mb) ** 2 for q in b)) ** 0.5
    return top / bottom if bottom else float("nan")


def first(x, k):
    return set(sorted(range(len(x)), key=lambda i: -x[i])[:k])


def distribution(p):
    raw = p["mean"]["mcap"]
    top = max(range(len(raw)), key=lambda i: raw[i])
    rest = [x for i, x in enumerate(raw) if i != top]
    high = [i for i, s in enumerate(p["score"]) if s >= 0.7]
    print(f"layers {len(raw)}, prompts {p['n_prompt']}, tokens {p['n_token']}")
    print(f"scores {min(raw):.4g} to {max(raw):.4g}; first layer {top}, "
          f"{max(raw) / (sum(rest) / len(rest)):.2f} times the mean of the others")
    print(f"at or above 0.7: {len(high)} {high}")
    print(f"gap {p['gap']:.4g}, largest spread {p['sigma']:.4g}, bound {p['bound']:.3g}")


def stability(p, trials=400):
    """Of n prompts drawn at random, how much of the first k layers is that of all prompts."""
    prompts, n_layer = p["mcap_by_prompt"], p["n_layer"]
    raw = p["mean"]["mcap"]
    rng = random.Random(1)
    print("\nfirst layers by n prompts, share of those by all: mean (worst)")
    print("n     " + "".join(f"{'k=' + str(k):>16}" for k in (1, 3, (n_layer + 3) // 4)))
    for n in (1, 2, 4, 6, 8, 10):
        line = f"{n:<6}"
        if n > len(prompts):
            break
        for k in (1, 3, (n_layer + 3) // 4):
            shares = []
            for _ in range(trials):
                some = rng.sample(prompts, n)
                mean = [sum(q[i] for q in some) / n for i in range(n_layer)]
                shares.append(len(first(mean, k) & first(raw, k)) / k)
            line += f"{sum(shares) / trials:>9.3f} ({min(shares):.2f})"
        print(line)


def columns(p, q):
    """name -> [n_layer]; layers that were not measured make the column useless and are left out."""
    n, f = p["n_layer"], len(q["formats"])
    out = {}
    for i, name in enumerate(q["formats"]):
        out["KL " + name] = [q["kl"][(b + 1) * f + i] for b in range(n)]
        out["error " + name] = [q["error"][(b + 1) * f + i] for b in range(n)]
    for i, name in enumerate(("a8", "a4")):
        out["KL " + name] = [q["kl_activation"][2 * (b + 1) + i] for b in range(n)]
    out["KL without"] = [q["kl_left_out"][b + 1] for b in range(n)]
    return {k: v for k, v in out.items() if None not in v}


def correlations(p, q):
    n = p["n_layer"]
    signals = dict(p["mean"])
    signals["last first"] = list(range(n))
    costs = columns(p, q)
    print("\nrank correlation of the signals with each other")
    names = list(signals)
    print(f"{'':12}" + "".join(f"{s:>12}" for s in names))
    for a in names:
        print(f"{a:12}" + "".join(f"{spearman(signals[a], signals[b]):>12.2f}" for b in names))
    print("\nwith what a change of one layer costs")
    print(f"{'':14}" + "".join(f"{s:>12}" for s in names))
    for c, cost in costs.items():
        print(f"{c:14}" + "".join(f"{spearman(signals[s], cost):>12.2f}" for s in names))
    rng = random.Random(2)
    luck = sorted(abs(spearman(list(range(n)), rng.sample(range(n), n))) for _ in range(4000))
    print(f"by chance: below {luck[int(0.95 * len(luck))]:.2f} in 95 of 100")


def joint_costs(p, q):
    """The first n layers of the measured order left out together, and their single costs added up."""
    n_layer = p["n_layer"]
    order = sorted((b for b in range(n_layer) if q["place"][b + 1] is not None), key=lambda b: q["place"][b + 1])
    alone = [q["kl_left_out"][b + 1] for b in order]
    rows = [(n, q["kl_fewer"][n], alone[:n]) for n in (1, 2, 3, 4, 6, 8, 12) if n <= len(order)]
    rows = [(n, together, each) for n, together, each in rows if together is not None and None not in each]
    if not rows:
        return
    print(f"\nKL of leaving out n of {n_layer} layers, the first of the measured order")
    print(f"{'n':14}" + "".join(f"{n:>8}" for n, _, _ in rows))
    print(f"{'together':14}" + "".join(f"{together:>8.3g}" for _, together, _ in rows))
    print(f"{'alone, added':14}" + "".join(f"{sum(each):>8.3g}" for _, _, each in rows))


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    with open(sys.argv[1]) as f:
        p = json.load(f)
    with open(sys.argv[2]) as f:
        q = json.load(f)
    if p["content"] != q["content"]:
        sys.exit("the two files are about different weights")
    distribution(p)
    stability(p)
    correlations(p, q)
    joint_costs(p, q)


main()
