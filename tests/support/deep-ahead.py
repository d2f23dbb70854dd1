"""deep-ahead.py OUT: a GLM-4.5 of many small dense layers with random weights and a head that predicts later tokens, whose
one layer is a small part of the model. For cli_ahead.sh."""

import json
import os
import random
import struct
import sys

N_LAYER, D, FF, HEAD, N_HEAD, N_VOCAB = 60, 256, 1024, 64, 4, 160
out = sys.argv[1]
os.makedirs(out)
config = {"architectures": ["Glm4MoeForCausalLM"], "attention_bias": False, "dtype": "bfloat16",
          "first_k_dense_replace": N_LAYER, "head_dim": HEAD, "hidden_act": "silu", "hidden_size": D,
          "intermediate_size": FF, "max_position_embeddings": 128, "model_type": "glm4_moe", "moe_intermediate_size": 64,
          "n_group": 1, "n_routed_experts": 2, "n_shared_experts": 1, "norm_topk_prob": True, "num_attention_heads": N_HEAD,
          "num_experts_per_tok": 1, "num_hidden_layers": N_LAYER, "num_key_value_heads": N_HEAD,
          "num_nextn_predict_layers": 1, "rms_norm_eps": 1e-05, "rope_theta": 10000.0, "routed_scaling_factor": 1.0,
          "tie_word_embeddings": False, "topk_group": 1, "use_qk_norm": False, "vocab_size": N_VOCAB}
r = random.Random(1)
some = b"".join(struct.pack("<f", r.gauss(0, 0.06))[2:] for _ in range(65536))  # bf16
one = b"\x80\x3f"
shapes = {"model.embed_tokens": (N_VOCAB, D), "lm_head": (N_VOCAB, D), "model.norm": (D,)}
for i in range(N_LAYER + 1):
    p = f"model.layers.{i}."
    for name in "qkvo":
        shapes[p + f"self_attn.{name}_proj"] = (N_HEAD * HEAD, D)
    shapes.update({p + "mlp.gate_proj": (FF, D), p + "mlp.up_proj": (FF, D), p + "mlp.down_proj": (D, FF),
                   p + "input_layernorm": (D,), p + "post_attention_layernorm": (D,)})
shapes.update({p + "enorm": (D,), p + "hnorm": (D,), p + "shared_head.norm": (D,), p + "eh_proj": (D, 2 * D)})
header, at = {}, 0
for name, shape in shapes.items():
    n = 2 * shape[0] * (shape[1] if len(shape) > 1 else 1)
    header[name + ".weight"] = {"dtype": "BF16", "shape": shape, "data_offsets": [at, at + n]}
    at += n
text = json.dumps(header).encode()
with open(os.path.join(out, "model.safetensors"), "wb") as f:
    f.write(struct.pack("<Q", len(text)) + text)
    for name, shape in shapes.items():
        n = 2 * shape[0] * (shape[1] if len(shape) > 1 else 1)
        f.write(one * (n // 2) if len(shape) == 1 else (some * (n // len(some) + 1))[:n])
with open(os.path.join(out, "config.json"), "w", encoding="utf-8") as f:
    json.dump(config, f)
