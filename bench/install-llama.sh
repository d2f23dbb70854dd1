#!/bin/sh
# A Python environment with llama.cpp, built from its PyPI source package for this CPU, for side_by_side.py.
# Prints the interpreter's path. Takes some minutes the first time.
set -eu
env=${XDG_CACHE_HOME:-$HOME/.cache}/nibble/llama-venv
if [ ! -x "$env/bin/python3" ] || ! "$env/bin/python3" -c 'import llama_cpp' 2>/dev/null; then
    python3 -m venv "$env" >&2
    CMAKE_BUILD_PARALLEL_LEVEL=${JOBS:-2} CMAKE_ARGS=-DGGML_NATIVE=ON \
        "$env/bin/pip" install --quiet --no-binary llama-cpp-python llama-cpp-python >&2
fi
echo "$env/bin/python3"
