#!/usr/bin/env python3
"""Residuals on disk: seconds, reads and processor time of a token, with the file in the page cache and without it.

    residual_disk.py BASE ORIGINAL SCRATCH RAM [K_CHUNK [TOKENS [PROMPT]]]

RAM must hold the base's weights, but not the residuals beside them. "cold": another process asks the
system again and again to drop the file's pages, so nearly all reads reach the disk. NIBBLE names another program.
"""
import json
import os
import subprocess
import sys
import tempfile
import threading
import time

base, original, scratch, ram = sys.argv[1:5]
k_chunk, n_token, n_prompt = (sys.argv[5:] + ["32", "16", "64"][len(sys.argv) - 5:])[:3]
nibble = os.environ.get("NIBBLE", "build/nibble")


def drop(pid, ended):
    """The file of residuals has no name: it is found among the open files of the process."""
    held = None
    while not ended.is_set():
        folder = f"/proc/{pid}/fd"
        try:
            if held is None:
                for fd in os.listdir(folder):
                    if "residuals-" in os.readlink(f"{folder}/{fd}"):
                        held = os.open(f"{folder}/{fd}", os.O_RDONLY)
            else:
                os.posix_fadvise(held, 0, 0, os.POSIX_FADV_DONTNEED)
        except OSError:
            pass
        time.sleep(0.002)
    if held is not None:
        os.close(held)


def run(what, cold, *options):
    command = [nibble, "bench", base, "-r", "2", "--json", "-q", "--activation", "a16", *what, *options]
    with tempfile.TemporaryFile() as out:
        child = subprocess.Popen(command, stdout=out, stderr=subprocess.DEVNULL)
        ended = threading.Event()
        dropper = threading.Thread(target=drop, args=(child.pid, ended))
        if cold:
            dropper.start()
        _, status, usage = os.wait4(child.pid, 0)
        ended.set()
        if cold:
            dropper.join()
        out.seek(0)
        return (json.load(out) if status == 0 else None), usage.ru_utime + usage.ru_stime


on_disk = ["--residual", original, "--k-chunk", k_chunk, "--ram", ram, "--scratch", scratch, "--packed-cache", "off"]
for name, what in (("generation", ["-p", "0", "-n", n_token]), ("prompt", ["-p", n_prompt, "-n", "0"])):
    for where, cold, options in (
        ("no residuals", False, ["--ram", ram, "--packed-cache", "off"]),
        ("in RAM", False, ["--residual", original, "--k-chunk", k_chunk]),
        ("on disk, in the page cache", False, on_disk),
        ("on disk, cold", True, on_disk),
    ):
        found, cpu = run(what, cold, *options)
        if not found:
            print(f"{name}, {where}: failed")
            continue
        traffic = found.get("traffic", {})
        # One repeat more warms up; each begins with a token of its own.
        rows = 3 * (1 + int(n_token if name == "generation" else n_prompt))
        print(
            f"{name}, {where}: {1000 / found['rows'][0]['tok_s']:.1f} ms a token; "
            f"{traffic.get('residual_reads', 0) / rows:.0f} reads, "
            f"{traffic.get('residual_bytes', 0) / rows / 1e6:.2f} MB a token; process {cpu:.1f} s of processor time",
            flush=True,
        )
