"""add-ahead.py FOLDER OUT: a copy of a fixture (bf16, one file) with a head that predicts later tokens: its layer is the
model's last one (or one that slides, or has a dense part, where the family's heads do), its embedding and its output are
the model's, and its projection passes both on. For cli_ahead.sh."""

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
d, n, family = config["hidden_size"], config["num_hidden_layers"], config["model_type"]
like = n - 1  # the head's layer is as this one, or dense as the first
prefix, names = f"model.layers.{n}.", ("enorm", "hnorm", "shared_head.norm", "eh_proj")
if family.startswith("qwen3_") or family == "exaone_moe":
    prefix, names = "mtp.layers.0.", ("pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm", "fc")
elif family == "mimo_v2_flash":
    prefix, names = "model.mtp.layers.0.", ("enorm", "hnorm", "final_layernorm", "eh_proj")
    like = config["layer_types"].index("sliding_attention")
elif family == "ernie4_5_moe":
    prefix, names = "model.mtp_block.0.", ("mtp_emb_norm.0", "mtp_hidden_norm.0", None, "mtp_linear_proj.0")
head = {"mtp.layers.0.": "mtp.", "model.mtp_block.0.": "model."}.get(prefix, prefix)  # of the other tensors
dense = family in ("exaone_moe", "mimo_v2_flash", "ernie4_5_moe")
tensors = {name: (t["dtype"], t["shape"], data[slice(*t["data_offsets"])])
           for name, t in header.items() if name != "__metadata__"}
own = {}
for name, tensor in tensors.items():
    part = name.split(".", 3)[-1]
    if name.startswith(f"model.layers.{0 if dense and '.mlp.' in name else like}."):
        own[prefix + part.replace("post_attention", "pre_mlp" if family == "mimo_v2_flash" else "post_attention")] = tensor
tensors.update(own)
if prefix == f"model.layers.{n}.":
    tensors[prefix + "embed_tokens.weight"] = tensors["model.embed_tokens.weight"]
    tensors[prefix + "shared_head.head.weight"] = tensors["lm_head.weight"]
for name in names[:3]:
    if name:
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
