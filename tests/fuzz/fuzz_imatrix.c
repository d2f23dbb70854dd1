/* fuzz_imatrix.c - any bytes as an importance matrix of llama.cpp, in either of its formats, for a small
 * model. */
#include "model/as_gguf.h"
#include "quantize/imatrix_file.h"
#include "support/memfile.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static memfile memory;
    static model *tiny;
    static gguf_tensors tensors;
    stats s;
    nib_error err;
    if (!tiny && (model_open("tests/data/arch-gguf/gpt2-q8_0.gguf", NULL, &tiny, &err) ||
                  gguf_tensors_open(tiny, &tensors, &err)))
        abort();
    imatrix_file_read(memfile_set(&memory, data, size), &tensors, NULL, &s, &err);
    stats_close(&s);
    return 0;
}
