#!/usr/bin/env python3
"""Counts the instructions of a kernel's loops: prints each basic block that has an instruction.
  sass.py OBJECT INSTRUCTION [KERNEL]    an object for one device; a prefix such as IMMA; a part of the kernel's name
Needs cuobjdump and nvdisasm (CUDA's, or the packages nvidia-cuda-cuobjdump and nvidia-cuda-nvdisasm)."""
import collections
import re
import subprocess
import sys


def kernels(path):
    """The kernels of an object: a name, and its instructions with their addresses."""
    text = subprocess.run(["cuobjdump", "-sass", path], capture_output=True, text=True, check=True).stdout
    for part in text.split("Function : ")[1:]:
        lines = re.findall(r"/\*([0-9a-f]{4,5})\*/\s+(.*?);", part)
        yield part.split()[0], [(int(at, 16), re.sub(r"^@!?U?P\w+ ", "", what)) for at, what in lines]


def blocks(code):
    """The counts of the instructions of each basic block."""
    begins = {0}
    for at, what in code:
        if re.match(r"BRA|BRX|BSSY|BSYNC|CALL|EXIT|RET|BREAK", what):
            begins.add(at + 16)
            begins.update(int(to, 16) for to in re.findall(r"0x([0-9a-f]+)", what))
    counts = collections.Counter()
    for at, what in code:
        if at in begins and counts:
            yield counts
            counts = collections.Counter()
        name = what.split()[0]
        counts[name if name.startswith("IMMA") else name.split(".")[0]] += 1
    yield counts


def main():
    if len(sys.argv) not in (3, 4):
        sys.exit(__doc__)
    for name, code in kernels(sys.argv[1]):
        if sys.argv[3:] and sys.argv[3] not in name:
            continue
        print(f"{name}: {len(code)}")
        for counts in blocks(code):
            if any(k.startswith(sys.argv[2]) for k in counts):
                print(f"  {sum(counts.values())}:", ", ".join(f"{n} {k}" for k, n in counts.most_common()))


if __name__ == "__main__":
    main()
