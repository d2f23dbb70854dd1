/* safetensors_write.h - writes a safetensors file front to back: declare every tensor, then give their bytes
 * in that order, in pieces of any size. The rules are those of gguf_write.h. */
#ifndef NIB_FORMATS_SAFETENSORS_WRITE_H
#define NIB_FORMATS_SAFETENSORS_WRITE_H

#include "formats/container.h"

typedef struct safetensors_writer safetensors_writer;

nib_status safetensors_writer_open(const char *path, safetensors_writer **out, nib_error *err);
/* shape: outermost first. The type must exist in safetensors. */
nib_status safetensors_writer_tensor(safetensors_writer *w, const char *name, type_id type, int n_dim,
                                     const int64_t *shape, nib_error *err);
nib_status safetensors_writer_data(safetensors_writer *w, const void *data, size_t n_byte, nib_error *err);

void safetensors_writer_set_cancel(safetensors_writer *w,
                                   const canceller *cancel); /* file_writer_set_cancel */
/* All declared bytes must have been given. Frees the writer in any case. */
nib_status safetensors_writer_commit(safetensors_writer *w, nib_error *err);
void safetensors_writer_abort(safetensors_writer *w); /* NULL is fine */

#endif
