"""llama.cpp beside nibble: builds llama_worker.c against the llama-cpp-python of some Python and runs it."""
import json
import os
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))


def run_json(command, env=None):
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **(env or {})})
    if done.returncode:
        sys.exit(f"{' '.join(command)}\nexit {done.returncode}: {done.stderr.strip()}")
    return json.loads(done.stdout.strip().splitlines()[-1])


class Llama:
    """python: one that has llama_cpp (bench/install-llama.sh prints its path)."""

    def __init__(self, python):
        where = subprocess.run([python, "-c", "import importlib.util as u; print(u.find_spec('llama_cpp').origin)"],
                               capture_output=True, text=True)
        if where.returncode:
            sys.exit(f"{python} has no llama_cpp: sh bench/install-llama.sh makes one that has")
        package = os.path.dirname(where.stdout.strip())
        self.folder = tempfile.TemporaryDirectory()
        self.worker = os.path.join(self.folder.name, "llama_worker")
        lib = os.path.join(package, "lib")
        subprocess.run([os.environ.get("CC", "cc").split()[-1], "-O2", "-I", os.path.join(package, "..", "include"),
                        os.path.join(HERE, "llama_worker.c"), "-o", self.worker, "-L", lib, "-Wl,-rpath," + lib,
                        "-Wl,-rpath-link," + lib, "-lllama", "-lggml", "-lggml-base"], check=True)

    def command(self, model, test, n, threads, repeats=3, n_ctx=0, n_seq=1):
        return [self.worker, model, test, "-n", str(n), "-t", str(threads), "-r", str(repeats), "-c", str(n_ctx),
                "-s", str(n_seq)]

    def run(self, *args, **more):
        return run_json(self.command(*args, **more))
