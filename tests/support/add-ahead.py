"""add-ahead.py FOLDER OUT: a copy of a fixture (bf16, one file) with a head that predicts later tokens: its layer is the
model's last one, its embedding and its output are the model's, and its projection passes both on. Qwen's heads have
names of their own. For cli_ahead.sh."""

import json
import os
import shutil
import struct
import sys

folder, out = sys.argv[1:]
os.makedirs(out)
shutil.copy(os.path.join(folder, "config.json"), out)
with open(os.path.join(folder, "config.json"), encoding="utf-8") as f:
    config = json.load(f)
with open(os.path.join(folder, "model.safetensors"), "rb") as f:
    header = json.loads(f.read(struct.unpack("<Q", f.read(8))[0]))
    data = f.read()
d, n = config["hidden_size"], config["num_hidden_layers"]
apart = config["model_type"].startswith("qwen3_")
last, head = f"model.layers.{n - 1}.", "mtp.layers.0." if apart else f"model.layers.{n}."
names = ("pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm", "fc") if apart else (
    "enorm", "hnorm", "shared_head.norm", "eh_proj")
tensors = {name: (t["dtype"], t["shape"], data[slice(*t["data_offsets"])])
           for name, t in header.items() if name != "__metadata__"}
for name in [x for x in tensors if x.startswith(last)]:
    tensors[head + name[len(last):]] = tensors[name]
if not apart:
    tensors[head + "embed_tokens.weight"] = tensors["model.embed_tokens.weight"]
    tensors[head + "shared_head.head.weight"] = tensors["lm_head.weight"]
head = "mtp." if apart else head
for name in names[:3]:
    tensors[head + name + ".weight"] = tensors["model.norm.weight"]
one, half, zero = b"\x80\x3f", b"\x00\x3f", b"\0\0"
rows = b"".join(b"".join(one if c == r else half if c == d + r else zero for c in range(2 * d)) for r in range(d))
tensors[head + names[3] + ".weight"] = ("BF16", [d, 2 * d], rows)
header, data = {}, b""
for name, (dtype, shape, raw) in tensors.items():
    header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(raw)]}
    data += raw
text = json.dumps(header).encode()
with open(os.path.join(out, "model.safetensors"), "wb") as f:
    f.write(struct.pack("<Q", len(text)) + text + data)
