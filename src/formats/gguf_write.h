/* gguf_write.h - writes a GGUF file front to back with little memory.
 *
 * Set metadata and declare all tensors first. Then give the tensors' bytes in the declared order, in pieces
 * of any size. The first byte of data ends the declarations. Padding is added automatically. The file appears
 * under its name when gguf_writer_commit succeeds. Misuse (a duplicate key, too much data, a declaration
 * after data) is NIB_E_USAGE; a tensor that the format cannot store is NIB_E_MODEL. One thread. After a
 * failure the writer can only be aborted. */
#ifndef NIB_FORMATS_GGUF_WRITE_H
#define NIB_FORMATS_GGUF_WRITE_H

#include "formats/container.h"
#include "formats/gguf.h"

typedef struct gguf_writer gguf_writer;

nib_status gguf_writer_open(const char *path, gguf_writer **out, nib_error *err);

/* As gguf_writer_open, but writes PATH.part, which survives the process (file_writer_open_part). */
nib_status gguf_writer_open_part(const char *path, gguf_writer **out, nib_error *err);

/* type: one of the integer types or GGUF_BOOL (the value must fit), GGUF_F32 or GGUF_F64. */
nib_status gguf_writer_set_int(gguf_writer *w, const char *key, gguf_value type, int64_t value,
                               nib_error *err);
nib_status gguf_writer_set_float(gguf_writer *w, const char *key, gguf_value type, double value,
                                 nib_error *err);
nib_status gguf_writer_set_string(gguf_writer *w, const char *key, const char *text, size_t n_byte,
                                  nib_error *err);
nib_status gguf_writer_set_ints(gguf_writer *w, const char *key, gguf_value type, const int64_t *values,
                                size_t n, nib_error *err);
nib_status gguf_writer_set_floats(gguf_writer *w, const char *key, gguf_value type, const double *values,
                                  size_t n, nib_error *err);
nib_status gguf_writer_set_strings(gguf_writer *w, const char *key, const meta_string *values, size_t n,
                                   nib_error *err);

/* A key with the raw bytes of its value, which further calls of gguf_writer_raw continue. The bytes are not
 * checked: for gguf_copy.h. */
nib_status gguf_writer_set_raw(gguf_writer *w, const char *key, gguf_value type, nib_error *err);
nib_status gguf_writer_raw(gguf_writer *w, const void *value, size_t n_byte, nib_error *err);

/* shape: outermost first, as in container_tensor. The type must exist in GGUF. */
nib_status gguf_writer_tensor(gguf_writer *w, const char *name, type_id type, int n_dim, const int64_t *shape,
                              nib_error *err);
/* Writes the next n_byte bytes of the declared tensors. */
nib_status gguf_writer_data(gguf_writer *w, const void *data, size_t n_byte, nib_error *err);

/* Skips the next bytes of data, which the part file has already. */
nib_status gguf_writer_skip(gguf_writer *w, uint64_t n_byte, nib_error *err);
/* Flushes: all data so far is in the file, though perhaps not yet on the disk. */
nib_status gguf_writer_sync(gguf_writer *w, nib_error *err);
/* File offset of tensor i's bytes. Valid once all tensors are declared. */
uint64_t gguf_writer_offset(const gguf_writer *w, size_t i);
/* A 64-bit hash of all metadata and declarations, in order. */
uint64_t gguf_writer_hash(const gguf_writer *w);

/* Replaces all missing data, from a tensor's beginning on, by a hole that takes no disk space, for files that
 * are only planned with. */
nib_status gguf_writer_hollow(gguf_writer *w, nib_error *err);

void gguf_writer_set_cancel(gguf_writer *w, const canceller *cancel); /* file_writer_set_cancel */
/* All declared bytes must have been given. Frees the writer in any case. */
nib_status gguf_writer_commit(gguf_writer *w, nib_error *err);
void gguf_writer_abort(gguf_writer *w);   /* NULL is fine */
void gguf_writer_discard(gguf_writer *w); /* the same, and removes PATH.part */

#endif
