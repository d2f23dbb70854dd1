"""Requests of a batch for ranks, some with a beginning that they share, and the texts of their answers."""

import json


def line(i):
    text = "the same beginning, longer than a page of positions: every rank shares its pages " * (i % 2) + "and %d" % i
    return json.dumps({"custom_id": str(i), "method": "POST", "url": "/v1/completions",
                       "body": {"prompt": text, "max_tokens": 4 + i, "temperature": 0.7 * (i % 3), "seed": i,
                                "ignore_eos": True}}) + "\n"


def answers(path):
    with open(path) as f:
        return {d["custom_id"]: d["response"]["body"]["choices"][0]["text"] for d in map(json.loads, f)}
