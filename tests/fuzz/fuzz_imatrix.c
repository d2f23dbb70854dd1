/* fuzz_imatrix.c - any bytes as an importance matrix of llama.cpp, in either of its formats, for a small
 * model. */
#include "formats/container.h"
#include "quantize/imatrix.h"
#include "support/memfile.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static memfile memory;
    static container *tiny;
    stats s;
    nib_error err;
    if (!tiny && container_open("tests/data/arch-gguf/gpt2-q8_0.gguf", NULL, &tiny, &err))
        abort();
    imatrix_read(memfile_set(&memory, data, size), tiny, NULL, &s, &err);
    stats_close(&s);
    return 0;
}
