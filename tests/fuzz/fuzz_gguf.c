/* fuzz_gguf.c - any bytes as a GGUF file. */
#include "fuzz/walk.h"
#include "support/memfile.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static memfile memory;
    container *c;
    nib_error err;
    if (container_open(memfile_set(&memory, data, size), NULL, &c, &err) != NIB_OK)
        return 0;
    walk_container(c);
    container_drop_vocab(c);
    walk_container(c);
    container_close(c);
    return 0;
}
