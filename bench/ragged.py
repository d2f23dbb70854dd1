#!/usr/bin/env python3
"""Requests of public task files for `nibble batch`: prompts and answers of very different lengths, and the same padded to
one length as FlexGen does it.

  python3 bench/ragged.py hellaswag|wikitext FILE [-n 200] [--pad P,G] >requests.jsonl
  python3 bench/ragged.py hellaswag FILE --run MODEL [--rounds 2] [--nibble-args ARGS]

hellaswag: six lines a task; the prompt is a context, the answer as long as the right ending. wikitext: a paragraph is a
prompt, of which 32 tokens are to be extracted. A token is taken as four bytes. --pad: every prompt has P tokens, every
answer G. --run: in turns with --schedule refill and block, and padded to the longest ones: tokens that were asked for, a
second."""
import argparse
import json
import os
import shlex
import subprocess
import sys
import tempfile

NIBBLE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../build/nibble")


def tasks(kind, path, n):
    """Pairs of a prompt and the number of tokens of its answer."""
    lines = open(path, encoding="utf-8").read().split("\n")
    if kind == "hellaswag":
        groups = [lines[i:i + 6] for i in range(0, len(lines) - 5, 6)]
        return [(g[0], max(len(g[2 + int(g[1])]) // 4, 1)) for g in groups][:n]
    return [(l.strip(), 32) for l in lines if len(l) > 80][:n]


def write(pairs, pad, out):
    for i, (prompt, n_gen) in enumerate(pairs):
        if pad:
            prompt, n_gen = [300 + j % 1000 for j in range(pad[0])], pad[1]
        body = {"prompt": prompt, "max_tokens": n_gen, "temperature": 0, "ignore_eos": True}
        out.write(json.dumps({"custom_id": str(i), "method": "POST", "url": "/v1/completions", "body": body}) + "\n")


def run(args, pairs, folder, name, pad, options):
    path, answers = os.path.join(folder, "in"), os.path.join(folder, "out")
    with open(path, "w", encoding="utf-8") as out:
        write(pairs, pad, out)
    if os.path.exists(answers):
        os.unlink(answers)
    done = subprocess.run([NIBBLE, "batch", args.run, "-i", path, "-o", answers, "--json", *options,
                           *shlex.split(args.nibble_args)],
                          capture_output=True, text=True)
    if done.returncode:
        sys.exit(done.stderr)
    found = json.loads(done.stdout)
    t, asked = found["timings"], sum(g for _, g in pairs)
    print(f"{name:8} {asked / t['seconds']:8.1f} tok/s of {asked}; computed {t['prompt_n']} + {t['predicted_n']} tokens in "
          f"{t['seconds']:.1f} s, {found['schedule']['block']} together", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=("hellaswag", "wikitext"))
    parser.add_argument("file")
    parser.add_argument("-n", type=int, default=200)
    parser.add_argument("--pad")
    parser.add_argument("--run")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--nibble-args", default="", help="options of nibble batch")
    args = parser.parse_args()
    pairs = tasks(args.kind, args.file, args.n)
    if not args.run:
        return write(pairs, [int(x) for x in args.pad.split(",")] if args.pad else None, sys.stdout)
    longest = [max(len(p) for p, _ in pairs) // 4, max(g for _, g in pairs)]
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(args.rounds):
            run(args, pairs, folder, "refill", None, [])
            run(args, pairs, folder, "block", None, ["--schedule", "block"])
            run(args, pairs, folder, "padded", longest, ["--schedule", "block"])


if __name__ == "__main__":
    main()
