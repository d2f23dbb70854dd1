/* gguf_copy.h - copies the metadata of one GGUF file to another, byte for byte. */
#ifndef NIB_FORMATS_GGUF_COPY_H
#define NIB_FORMATS_GGUF_COPY_H

#include "formats/gguf_write.h"

/* Copies every key of f for which keep() returns true, with its type and bytes; arrays of arrays are left
 * out. f is not trusted: NIB_E_MODEL. max: maximum bytes of header that are read. */
nib_status gguf_copy_keys(file *f, uint64_t max, bool (*keep)(void *user, const char *key), void *user,
                          gguf_writer *w, nib_error *err);

#endif
