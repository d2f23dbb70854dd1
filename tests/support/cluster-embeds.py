"""Embeddings between answers, of one process and of ranks that share every layer: cluster-embeds.py NIBBLE MODEL
DEVICES [OPTION...]. The exit code says whether they are alike."""
import sys

from server import Server

nibble, model, devices = sys.argv[1:4]
options = sys.argv[4:]
ask = {"prompt": "a", "max_tokens": 4, "ignore_eos": True, "temperature": 0}
found = []
for ranks in [["--backend", "cuda"], ["--devices", devices, "--split-mode", "tensor"]]:
    s = Server(nibble, model, "-c", "64", *ranks, *options)
    texts, rows = [], []
    for i in range(2):
        texts.append(s.post("/v1/completions", ask)[1]["choices"][0]["text"])
        rows.append(s.post("/v1/embeddings", {"input": "hello world"})[1]["data"][0]["embedding"])
    s.end()
    found.append((texts, rows))
(one, alone), (many, shared) = found
near = all(abs(a - b) < 1e-4 for r in range(2) for a, b in zip(alone[r], shared[r]))
print(one, many, near, file=sys.stderr)
sys.exit(not (near and one == many))
