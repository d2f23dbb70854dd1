#!/bin/sh
# The residual tuner's promise, measured (docs/paper-qdec.md): generated tokens with the choice of --slowdown P beside
# tokens without residuals. For a quiet machine.
#   residual_slowdown.sh BASE ORIGINAL [TARGET...]      default targets: 2.5 5 10 20
# BASE is ORIGINAL in a small format: nibble quantize ORIGINAL -o BASE --type n3g64. The speed of a processor drifts,
# so runs without and with residuals take turns: ROUNDS (6) pairs of TOKENS (64) generated tokens. The slowdown is the
# median of the pairs' ratios. One line a target, which ends in "kept" or "MISSED".
set -eu
base=$1 original=$2
shift 2
[ $# -gt 0 ] || set -- 2.5 5 10 20
exec python3 - "$base" "$original" "$@" <<'END_PYTHON'
import json, os, re, statistics, subprocess, sys, tempfile

base, original, targets = sys.argv[1], sys.argv[2], sys.argv[3:]
nibble = os.environ.get("NIBBLE", "build/nibble")
rounds, tokens = int(os.environ.get("ROUNDS", "6")), os.environ.get("TOKENS", "64")
options = ["--activation", "a16"] + os.environ.get("OPTIONS", "").split()


def call(*arguments):
    done = subprocess.run([nibble, *arguments, *options, "--json"], capture_output=True, text=True)
    if done.returncode:
        sys.exit(done.stderr)
    return json.loads(done.stdout)


def speed(*arguments):
    return call("bench", base, "-p", "0", "-n", tokens, "-r", "1", *arguments)["rows"][0]["tok_s"]


def tune(target, plan, to):
    """A plan with the choice of one run of the tuner. `nibble plan` also scores each step, which takes a minute."""
    done = subprocess.run([nibble, "bench", base, "-p", "0", "-n", "1", "-r", "1", "--residual", original, "--slowdown",
                           target, *options], capture_output=True, text=True)
    said = re.findall(r"residuals: (.*) channels of each 1,024, (\S+) % slower", done.stderr)
    if done.returncode or not said:
        sys.exit(done.stderr)
    chosen = dict(kind.rsplit(" ", 1) for kind in said[-1][0].split(", "))
    for kind in plan["residuals"]["kinds"]:
        kind["k_chunk"] = int(chosen[kind["products"]])
        kind["n_tb"] = 1 if kind["k_chunk"] else 0
    json.dump(plan, open(to, "w"))
    return "%s; by the tuner %s %%" % (said[-1][0], said[-1][1])


with tempfile.TemporaryDirectory() as folder:
    plan = os.path.join(folder, "plan.json")
    call("plan", base, "--residual", original, "--slowdown", "0", "-o", plan)
    template = json.load(open(plan))
    for target in targets:
        channels = tune(target, template, plan)
        pairs = []
        for i in range(rounds):
            pair = [0, 0]
            for with_ in (i % 2, 1 - i % 2):
                pair[with_] = speed("--residual", original, "--plan", plan) if with_ else speed()
            pairs.append(pair)
        slower = 100 * (statistics.median(a / b for a, b in pairs) - 1)
        print("target %s %%: %.1f %% slower (medians %.1f tok/s without, %.1f with; pairs from %.1f to %.1f %%) | %s | %s" % (
            target, slower, statistics.median(p[0] for p in pairs), statistics.median(p[1] for p in pairs),
            100 * (min(a / b for a, b in pairs) - 1), 100 * (max(a / b for a, b in pairs) - 1), channels,
            "kept" if slower <= float(target) else "MISSED"), flush=True)
END_PYTHON
