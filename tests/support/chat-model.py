"""Makes a folder in which nibble chat can work: a tiny random model of tests/data (llama, unless FAMILY names another
one) with a tokenizer of bytes.
   python3 chat-model.py TESTS-FOLDER OUT [FAMILY]"""
import json
import shutil
import sys

tests, out = sys.argv[1:3]
family = sys.argv[3] if len(sys.argv) > 3 else "llama"
for name in ("config.json", "model.safetensors"):
    shutil.copy(f"{tests}/data/arch/{family}/{name}", out)
# the 256 bytes as GPT-2 writes them, and three tokens that the template uses
shown = list(range(33, 127)) + list(range(161, 173)) + list(range(174, 256))
spelt = {b: chr(b) for b in shown}
spelt.update({b: chr(256 + i) for i, b in enumerate(b for b in range(256) if b not in shown)})
special = ["<s>", "<u>", "<a>"]
with open(f"{out}/tokenizer.json", "w") as file:
    json.dump({
        "version": "1.0", "normalizer": None, "post_processor": None,
        "added_tokens": [{"id": 256 + i, "content": t, "single_word": False, "lstrip": False, "rstrip": False,
                          "normalized": False, "special": True} for i, t in enumerate(special)],
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": {"type": "BPE", "dropout": None, "unk_token": None, "fuse_unk": False, "byte_fallback": False,
                  "vocab": {spelt[b]: b for b in range(256)} | {t: 256 + i for i, t in enumerate(special)},
                  "merges": []},
    }, file)
