#!/bin/sh
# Gathers what tools/gpu-test.sh needs on a machine without network: the command, the tests of the kernels, the
# kernel benchmarks, the CUDA kernels where nvcc is, and the shared libraries that may be missing there (all but the C library's), stripped, in one
# folder that is copied there.
#   pack-for-gpu.sh [BUILD]     (default: build) -> BUILD/travel
# LLAMA_PYTHON=$(sh bench/install-llama.sh amx): also packs the llama.cpp of that environment, to run beside nibble.
set -eu
cd "$(dirname "$0")/.."
build=${1:-build}
out=$build/travel
programs=nibble
for test in tests/test_kernels_*.c; do
    programs="$programs tests/$(basename "$test" .c)"
done
programs="$programs tests/test_exec_cuda bench/bench_amx bench/bench_kernels bench/bench_cuda bench/bench_prefix bench/bench_residual"
for program in $programs; do
    echo "$build/$program"
done | xargs make -s BUILD="$build"
if command -v nvcc >/dev/null; then
    make -s BUILD="$build" CUDA_ARCH="${CUDA_ARCH:-all}" "$build/libnibble-cuda.so"
fi
rm -rf "$out"
mkdir -p "$out/lib"
for program in $programs; do
    strip -o "$out/$(basename "$program")" "$build/$program"
    ldd "$build/$program" | awk '$2 == "=>" && $3 ~ /^\// { print $3 }'
done | sort -u | while read -r library; do
    case $(basename "$library") in
    libc.so* | libm.so* | libpthread.so* | libdl.so* | librt.so* | ld-linux*) ;;
    *) cp -L "$library" "$out/lib/" && strip --strip-unneeded "$out/lib/$(basename "$library")" 2>/dev/null || true ;;
    esac
done
[ ! -f "$build/libnibble-cuda.so" ] || cp "$build/libnibble-cuda.so" "$out/"
if [ -n "${LLAMA_PYTHON:-}" ]; then
    packages=$("$LLAMA_PYTHON" -c 'import sysconfig; print(sysconfig.get_path("platlib"))')
    mkdir "$out/llama"
    for library in llama ggml ggml-base ggml-cpu; do
        strip --strip-unneeded -o "$out/llama/lib$library.so.0" "$packages/llama_cpp/lib/lib$library.so"
        ln -s "lib$library.so.0" "$out/llama/lib$library.so" # for the link below
    done
    cc -O2 -I "$packages/include" bench/llama_worker.c -o "$out/llama_worker" -L "$out/llama" \
        -Wl,-rpath-link,"$out/llama" -lllama -lggml -lggml-base
    find "$out/llama" -type l -delete
    cp -L "$(cc -print-file-name=libgomp.so.1)" "$(cc -print-file-name=libstdc++.so.6)" "$out/llama/"
fi
du -sh "$out"
