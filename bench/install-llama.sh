#!/bin/sh
# A Python environment with llama.cpp, built from its PyPI source package, for side_by_side.py. Prints the
# interpreter's path. Takes some minutes the first time.
#   install-llama.sh         for this CPU, with all that it has
#   install-llama.sh amx     with AVX-512 VNNI and AMX, to be carried to a Xeon that has them (tools/gpu-test.sh)
#   install-llama.sh avx2    with AVX2, FMA and F16C and nothing beyond, whatever the CPU has: for --isa avx2
# LLAMA_VERSION picks a version of llama-cpp-python; JOBS how many compilers run at once.
set -eu
isa=${1:-native}
folder=${XDG_CACHE_HOME:-$HOME/.cache}/nibble
case $isa in
native)
    env=$folder/llama-venv
    flags=-DGGML_NATIVE=ON
    ;;
avx2)
    env=$folder/llama-venv-avx2
    flags="-DGGML_NATIVE=OFF -DGGML_SSE42=ON -DGGML_AVX=ON -DGGML_AVX2=ON -DGGML_FMA=ON -DGGML_F16C=ON -DGGML_BMI2=ON"
    flags="$flags -DGGML_AVX_VNNI=OFF -DGGML_AVX512=OFF -DGGML_AMX_INT8=OFF -DGGML_AMX_BF16=OFF"
    ;;
amx)
    env=$folder/llama-venv-amx
    flags="-DGGML_NATIVE=OFF -DGGML_SSE42=ON -DGGML_AVX=ON -DGGML_AVX2=ON -DGGML_FMA=ON -DGGML_F16C=ON -DGGML_BMI2=ON"
    flags="$flags -DGGML_AVX512=ON -DGGML_AVX512_VBMI=ON -DGGML_AVX512_VNNI=ON -DGGML_AVX512_BF16=ON"
    flags="$flags -DGGML_AVX_VNNI=ON -DGGML_AMX_TILE=ON -DGGML_AMX_INT8=ON -DGGML_AMX_BF16=ON"
    ;;
*)
    echo "usage: install-llama.sh [native|amx|avx2]" >&2
    exit 2
    ;;
esac
package=llama-cpp-python${LLAMA_VERSION:+==$LLAMA_VERSION}
if [ ! -x "$env/bin/python3" ] || ! "$env/bin/pip" show --quiet llama-cpp-python 2>/dev/null; then
    python3 -m venv "$env" >&2
    CMAKE_BUILD_PARALLEL_LEVEL=${JOBS:-2} CMAKE_ARGS=$flags \
        "$env/bin/pip" install --quiet --no-cache-dir --no-binary llama-cpp-python "$package" >&2
fi
echo "$env/bin/python3"
