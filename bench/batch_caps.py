#!/usr/bin/env python3
"""Checks that nibble batch keeps its caps, its answers and its file of answers, whatever the plan and whenever it is
killed: random runs under random caps, each killed at random moments (kill -9) and continued by the same command.

  python3 bench/batch_caps.py [MODEL...] [--runs 200] [--kills 200] [--seed 1] [--low 40] [--high 200] [--lines 16]
                              [--vram LOW,HIGH] [--json FILE]

Each run draws a model, caps on RAM and on the disk (in MiB; RAM between --low and --high, and with --vram on the GPU as
well), sequences together, context, cache format, schedule, order of the answers, threads, speculation and whether the
packed weights are stored. A run that refuses its caps is drawn again. When it has ended, the file must have one whole
line for each request and nothing else, and each answer the text of a run without a cap in the same cache format. On a
GPU the last bits of answers depend on the caps, so there the text is that of the same run without a kill.

The peak of RAM is the kernel's (the largest resident set of the child, which wait4 returns); those of the disk and of
VRAM are the ledger's. Kills are spread evenly over the runs, at moments of a killed run's expected time.
Exit 1 when a cap was broken, or an answer was lost, doubled or differs."""
import argparse
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
NIBBLE = os.environ.get("NIBBLE", os.path.join(HERE, "..", "build", "nibble"))
KINDS = ("f16", "f32", "kv8", "kv4")
TEXT = "A river that rises in the mountains carries stones, then gravel, then sand, and in the end only mud. "
REFUSED = 3  # exit code of a budget that cannot be met


def write_requests(path, n):
    """Requests with short and long prompts, some with the same beginning."""
    with open(path, "w", encoding="utf-8") as file:
        for i in range(n):
            body = {"prompt": f"{i}. " * (i % 2) + TEXT * (1 + i % 3) + f"So {i}", "max_tokens": 4 + 3 * (i % 4),
                    "temperature": 0.8, "seed": i, "ignore_eos": True}
            file.write(json.dumps({"custom_id": str(i), "method": "POST", "url": "/v1/completions", "body": body}) + "\n")


def answers_of(path):
    """({custom_id: text}, a fault or None) of a complete file of answers."""
    texts = {}
    with open(path, encoding="utf-8") as file:
        for line in file:
            try:
                answer = json.loads(line)
                name, text = answer["custom_id"], answer["response"]["body"]["choices"][0]["text"]
            except (ValueError, KeyError, TypeError) as error:
                return texts, f"a line that is no answer ({error}): {line[:100]}"
            if not line.endswith("\n") or name in texts:
                return texts, f"the line of {name} is cut or there twice"
            texts[name] = text
    return texts, None


def run(options, kill_after=None):
    """(exit code, or None if it was killed; largest resident set in bytes; seconds; the report or the error)"""
    begun = time.perf_counter()
    with tempfile.TemporaryFile() as report:
        child = subprocess.Popen([NIBBLE, "batch", *options, "--json", "-q"], stdin=subprocess.DEVNULL, stdout=report,
                                 stderr=subprocess.STDOUT)
        if kill_after is not None:
            time.sleep(kill_after)
            os.kill(child.pid, signal.SIGKILL)  # not send_signal, which may wait for it
        _, status, usage = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)  # so that Popen does not wait again
        report.seek(0)
        text = report.read().decode(errors="replace").strip()
    code = None if child.returncode == -signal.SIGKILL else child.returncode
    return code, usage.ru_maxrss << 10, time.perf_counter() - begun, text


def draw_run(draw, args, folder):
    """(caps by tier, cache format, options)"""
    caps, kind = {"ram": draw.randint(args.low, args.high) << 20}, draw.choice([k for k in KINDS if k != "f32" or not args.vram])
    options = ["--kv", kind, "-c", str(draw.choice([128, 320])), "-t", draw.choice("12"),
               "--schedule", draw.choice(["refill", "block", "row"]), "--order", draw.choice(["done", "input"]),
               "--draft-max", draw.choice(["0", "4"])]
    if draw.random() < 0.6:
        options += ["-np", str(draw.choice([1, 2, 5, 16, 40]))]
    if draw.random() < 0.5:
        caps["disk"] = draw.randint(50, 600) << 20
        options += ["--scratch", os.path.join(folder, "scratch"), "--packed-cache", draw.choice(["on", "off", "auto"])]
    if args.vram:
        low, high = (int(x) for x in args.vram.split(","))
        caps["vram"] = draw.randint(low, high) << 20
        options += ["--backend", "cuda"]
    for tier, cap in caps.items():
        options += ["--" + tier, str(cap)]
    return caps, kind, options


def peaks_of(rss, text):
    """Largest bytes of each tier: the kernel's figure for RAM, the ledger's for the others."""
    tiers = json.loads(text.splitlines()[-1])["memory"]["tiers"]
    return {"ram": rss, **{name: tiers[name]["peak"] for name in tiers if name != "ram"}}


def main():
    usage = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    usage.add_argument("models", nargs="*", default=["smollm2"])
    for name, value in (("runs", 200), ("kills", 200), ("seed", 1), ("low", 40), ("high", 200), ("lines", 16)):
        usage.add_argument("--" + name, type=int, default=value)
    usage.add_argument("--vram")
    usage.add_argument("--json")
    args = usage.parse_args()
    draw, rows, wanted, expected, refused, killed = random.Random(args.seed), [], {}, {}, 0, 0
    with tempfile.TemporaryDirectory() as folder:
        requests, out = os.path.join(folder, "in.jsonl"), os.path.join(folder, "out.jsonl")
        write_requests(requests, args.lines)
        while len(rows) < args.runs:
            model, (caps, kind, options) = draw.choice(args.models), draw_run(draw, args, folder)
            command = [model, "-i", requests, "-o", out, *options]
            plan = (model, *options) if args.vram else (model, kind)
            if plan not in wanted:
                code, _, seconds, text = run(command if args.vram else [*command[:5], "--kv", kind, "-np", "1", "-c", "320"])
                if code == REFUSED and args.vram:
                    refused += 1
                    continue
                wanted[plan] = answers_of(out)[0]
                if code != 0 or len(wanted[plan]) != args.lines:
                    sys.exit(f"the run that others are compared with failed: {text}")
                expected[model] = seconds
                os.unlink(out)
            peaks, faults, code = [], [], None
            n_kill = -(-(args.kills - killed) // (args.runs - len(rows)))  # what is left, spread over the runs that are left
            while code is None:
                code, rss, seconds, text = run(command, draw.uniform(0, expected[model]) if n_kill > 0 else None)
                if code is None:
                    n_kill, killed = n_kill - 1, killed + 1
                    peaks.append({"ram": rss})
                elif code == 0:
                    peaks.append(peaks_of(rss, text))
                elif code != REFUSED:
                    faults.append(f"exit {code}: {text[-300:]}")
            if code == REFUSED:
                refused += 1
            else:
                texts, fault = answers_of(out)
                faults += [fault] if fault else []
                faults += [f"the answer of {i} is lost or differs" for i in wanted[plan]
                           if texts.get(i) != wanted[plan][i]]
                faults += [f"{tier}: {p[tier]} bytes of {cap}" for p in peaks for tier, cap in caps.items() if p.get(tier, 0) > cap]
                rows.append({"model": model, "options": options, "caps": caps, "peaks": peaks, "faults": faults})
                if faults:
                    print(f"run {len(rows)}: {model} {' '.join(options)}\n  {faults[:3]}", flush=True)
                elif len(rows) % 10 == 0:
                    print(f"{len(rows)} runs, {killed} kills", flush=True)
            if os.path.exists(out):
                os.unlink(out)
    used = [max(p["ram"] for p in r["peaks"]) / r["caps"]["ram"] for r in rows]
    faulty = sum(bool(r["faults"]) for r in rows)
    print(f"{len(rows)} runs ({refused} refused their caps), {killed} of them killed once or more, {args.lines * len(rows)} answers: "
          f"{faulty} runs with a fault; peak of RAM by its cap: median {statistics.median(used):.3f}, most {max(used):.3f}")
    if args.json:
        with open(args.json, "w", encoding="utf-8") as file:
            json.dump(rows, file, indent=1)
    return faulty > 0


if __name__ == "__main__":
    sys.exit(main())
