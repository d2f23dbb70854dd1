/* fuzz_gguf.c - any bytes as a GGUF file. */
#include "fuzz/walk.h"
#include "support/memfile.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static memfile memory;
    walk_path(memfile_set(&memory, data, size));
    return 0;
}
