#!/usr/bin/env python3
"""Makes tests/data/templates/*.json: chat templates with the texts that Python's jinja2 renders from them, in exactly
the environment that transformers uses. Needs transformers and jinja2 >= 3.1.6.

    tools/make-template-data.py [OUT_DIR] [--fuzz N --seed S]

Each file: {"template": ..., "now": seconds, "cases": [{"variables": {...}, "expected": text} or
{"variables", "error": message of raise_exception} or {"variables", "fails": true}]}, or for many small templates
{"now", "templates": [{"template", "variables", ...}, ...]}. With --fuzz only fuzz.json is made: N random templates.
The random templates leave out two features of jinja2 in which nibble differs on purpose: errors that vanish when
constants are folded, and names that a template assigns only after an inner scope has read them (jinja2: undefined there).
The template shapes, tools/template_data/shapes/*.jinja, follow what model families publish; they are written by hand,
in short form, and every byte of them counts, the last newline too.
"""
import argparse
import json
import os
import warnings

from template_data.conversations import conversations
from template_data.grammar import fuzz_cases
from template_data.reference import NOW, outcome
from template_data.rules import MICRO, SCOPES, V, WHITESPACE

HERE = os.path.dirname(os.path.abspath(__file__))


def shapes():
    folder = os.path.join(HERE, "template_data", "shapes")
    for file in sorted(os.listdir(folder)):
        with open(os.path.join(folder, file), encoding="utf-8", newline="") as f:
            yield os.path.splitext(file)[0], f.read()


def write(folder, name, data):
    path = os.path.join(folder, name + ".json")
    with open(path, "w", encoding="utf-8") as f:
        json.dump(data, f, ensure_ascii=False, indent=1)
        f.write("\n")


def main():
    warnings.simplefilter("ignore")
    parser = argparse.ArgumentParser()
    parser.add_argument("out", nargs="?", default=os.path.join(HERE, "..", "tests", "data", "templates"))
    parser.add_argument("--fuzz", type=int, default=0)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    os.makedirs(args.out, exist_ok=True)
    if args.fuzz:
        write(args.out, "fuzz", {"now": NOW, "globals": V, "templates": fuzz_cases(args.fuzz, args.seed)})
        return
    for name, template in shapes():
        cases = [dict(variables=v, **outcome(template, v)) for v in conversations()]
        write(args.out, name, {"template": template, "now": NOW, "cases": cases})
    small = []
    for line in MICRO.split("\n"):
        pieces = [line] if "{%" in line else ["{{ " + p for p in line.split("{{ ")[1:]] or [line]
        for piece in pieces:
            small.append(dict(template=piece, variables={}, **outcome(piece, V)))
        small.append(dict(template=line, variables={}, **outcome(line, V)))
    for template in WHITESPACE + SCOPES:
        small.append(dict(template=template, variables={}, **outcome(template, V)))
    write(args.out, "small", {"now": NOW, "globals": V, "templates": small})
    write(args.out, "random", {"now": NOW, "globals": V, "templates": fuzz_cases(300, 7)})


if __name__ == "__main__":
    main()
