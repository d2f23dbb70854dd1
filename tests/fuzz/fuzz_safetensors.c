/* fuzz_safetensors.c - any bytes as a safetensors file: the first two are the header's length, so that the
 * fuzzer does not have to find eight consistent bytes; the rest is the file after it. */
#include "fuzz/walk.h"
#include "support/memfile.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static memfile memory;
    if (size < 2)
        return 0;
    const uint64_t length = data[0] | (uint64_t)data[1] << 8;
    uint8_t *bytes = malloc(size + 6);
    if (!bytes)
        return 0;
    memcpy(bytes, &length, 8);
    memcpy(bytes + 8, data + 2, size - 2);
    walk_path(memfile_set(&memory, bytes, size + 6));
    free(bytes);
    return 0;
}
