#!/bin/sh
# llama.cpp's own tools, built from the tree inside llama-cpp-python's PyPI source package: llama-batched-bench for
# side_by_side.py --batched-bench, llama-quantize for comparisons of formats. Prints the folder that has them. Takes
# a quarter of an hour on two cores the first time.
#   install-llama-tools.sh         for this CPU, with all its instruction sets
#   install-llama-tools.sh avx2    with AVX2, FMA and F16C only, on any CPU
# LLAMA_VERSION picks a version of llama-cpp-python; JOBS how many compilers run at once; TOOLS_FOLDER where it builds.
set -eu
isa=${1:-native}
case $isa in
native) flags=-DGGML_NATIVE=ON ;;
avx2)
    flags="-DGGML_NATIVE=OFF -DGGML_SSE42=ON -DGGML_AVX=ON -DGGML_AVX2=ON -DGGML_FMA=ON -DGGML_F16C=ON -DGGML_BMI2=ON"
    flags="$flags -DGGML_AVX_VNNI=OFF -DGGML_AVX512=OFF -DGGML_AMX_INT8=OFF -DGGML_AMX_BF16=OFF"
    ;;
*)
    echo "usage: install-llama-tools.sh [native|avx2]" >&2
    exit 2
    ;;
esac
folder=${TOOLS_FOLDER:-${XDG_CACHE_HOME:-$HOME/.cache}/nibble/llama-tools-$isa}
if [ ! -x "$folder/bin/llama-batched-bench" ]; then
    mkdir -p "$folder/package" "$folder/bin"
    python3 -m pip download --quiet --no-deps --no-binary :all: -d "$folder/package" \
        "llama-cpp-python${LLAMA_VERSION:+==$LLAMA_VERSION}" >&2
    tar xzf "$folder"/package/llama_cpp_python-*.tar.gz -C "$folder/package"
    # shellcheck disable=SC2086 # flags are several words
    cmake -S "$folder"/package/llama_cpp_python-*/vendor/llama.cpp -B "$folder/build" -DCMAKE_BUILD_TYPE=Release \
        -DBUILD_SHARED_LIBS=OFF -DLLAMA_BUILD_TOOLS=ON -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF \
        -DLLAMA_BUILD_SERVER=OFF -DLLAMA_CURL=OFF -DLLAMA_OPENSSL=OFF $flags >&2
    cmake --build "$folder/build" --parallel "${JOBS:-2}" --target llama-batched-bench llama-quantize >&2
    cp "$folder/build/bin/llama-batched-bench" "$folder/build/bin/llama-quantize" "$folder/bin"
    rm -rf "$folder/build" "$folder/package"
fi
echo "$folder/bin"
