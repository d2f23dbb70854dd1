/* gguf_copy.h - copies the metadata of one GGUF file to another, byte for byte. */
#ifndef NIB_FORMATS_GGUF_COPY_H
#define NIB_FORMATS_GGUF_COPY_H

#include "formats/gguf_write.h"

/* Sets every key of f for which keep() says so, with the type and the bytes that f has; arrays of arrays are
 * left out. Nothing in f is trusted: NIB_E_MODEL. `max`: bytes of header that are read at most. */
nib_status gguf_copy_keys(file *f, uint64_t max, bool (*keep)(void *user, const char *key), void *user,
                          gguf_writer *w, nib_error *err);

#endif
