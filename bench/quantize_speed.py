#!/usr/bin/env python3
"""The time of `nibble quantize` beside llama-quantize's, with the same importance matrix, for every type that both
write: processor time (user and system) and wall time, the least of some rounds in turns. A table row for each type.

  python3 bench/quantize_speed.py MODEL.gguf [TYPE...] [--rounds 3] [-t 2]

The importance matrix is measured once, before the rounds (--imatrix FILE: another one). llama-quantize is built by
install-llama-tools.sh. Formats of one kind are compared with its --pure, mixes with its own mixes. Files are in memory,
because nibble waits until its file is on the disk and llama-quantize does not."""
import argparse
import os
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
TYPES = {"q4_0": "Q4_0", "q4_1": "Q4_1", "q5_0": "Q5_0", "q5_1": "Q5_1", "q8_0": "Q8_0", "q2_k": "Q2_K", "q3_k": "Q3_K_S",
         "q4_k": "Q4_K_S", "q5_k": "Q5_K_S", "q6_k": "Q6_K", "iq4_nl": "IQ4_NL", "iq4_xs": "IQ4_XS", "bf16": "BF16",
         "f16": "F16", "f32": "F32", "q2_k_m": "Q2_K", "q3_k_m": "Q3_K_M", "q4_k_m": "Q4_K_M", "q5_k_m": "Q5_K_M"}


def timed(command):
    """Processor and wall seconds of a command, which must succeed."""
    start = time.monotonic()
    with tempfile.TemporaryFile() as said:
        process = subprocess.Popen(command, stdout=said, stderr=said)
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            said.seek(0)
            sys.exit(f"{' '.join(command)}: exit {process.returncode}\n{said.read().decode(errors='replace')[-2000:]}")
    return used.ru_utime + used.ru_stime, time.monotonic() - start


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("types", nargs="*", default=list(TYPES), help="default: all")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--imatrix", help="llama.cpp's importance matrix; default: nibble measures one")
    parser.add_argument("-t", default="2", help="threads of both")
    parser.add_argument("--nibble", default=os.path.join(HERE, "..", "build", "nibble"))
    args = parser.parse_args()
    unknown = [t for t in args.types if t not in TYPES]
    if unknown:
        parser.error(f"{unknown[0]}: expected one of {' '.join(TYPES)}")
    tools = subprocess.run(["sh", os.path.join(HERE, "install-llama-tools.sh")], check=True, stdout=subprocess.PIPE,
                           text=True).stdout.split()[-1]
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.path.isdir("/dev/shm") else None) as folder:
        out, imatrix = os.path.join(folder, "out.gguf"), args.imatrix or os.path.join(folder, "imatrix.gguf")
        if not args.imatrix:
            timed([args.nibble, "quantize", args.model, "-o", out, "--type", "q8_0", "--keep-imatrix", imatrix, "-q"])
        print(f"{os.path.basename(args.model)}, {args.t} threads, least of {args.rounds} rounds in turns, files in {folder}, seconds\n")
        print("| type | nibble, processor | llama-quantize, processor | nibble, wall | llama-quantize, wall |\n|---|---|---|---|---|")
        for name in args.types:
            pure = [] if name.endswith("_m") else ["--pure"]
            turns = ([args.nibble, "quantize", args.model, "-o", out, "--type", name, "--imatrix", imatrix, "-t", args.t, "-q"],
                     [os.path.join(tools, "llama-quantize"), "--allow-requantize", *pure, "--imatrix", imatrix, args.model, out,
                      TYPES[name], args.t])
            best = [(float("inf"),) * 2] * 2
            for _ in range(args.rounds):
                for i, command in enumerate(turns):
                    if os.path.exists(out):
                        os.unlink(out)
                    best[i] = tuple(map(min, best[i], timed(command)))
            print(f"| {name} | {best[0][0]:.2f} | {best[1][0]:.2f} | {best[0][1]:.2f} | {best[1][1]:.2f} |")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
