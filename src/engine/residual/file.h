/* file.h - residuals in a file of their own, which can be used instead of the original. 'nibble
 * quantize --keep-residual' writes it beside the base (the quantized model). It has a header of 4 KiB, then
 * the codes and scales of each matrix, as in memory (numbers/residual.h), in the order of the base's layout.
 * The header has the key of the base's contents, so residuals of another model are refused. */
#ifndef NIB_ENGINE_RESIDUAL_FILE_H
#define NIB_ENGINE_RESIDUAL_FILE_H

#include "engine/residual/make.h"

enum { RESIDUAL_FILE_HEAD = 4096 /* bytes before the first matrix */ };

/* Whether path is a file of residuals. */
bool residual_file_is(const char *path);
/* Opens a writer and writes the header for n_byte bytes of residuals of the core's model, in
 * requested.residual_bits. The caller writes the residuals and commits. */
nib_status residual_file_begin(const engine_core *e, const char *path, uint64_t n_byte, file_writer **out,
                               nib_error *err);
/* Reads a file of n_byte bytes of residuals into r->memory. With is_on_disk reads only the scales; *out is
 * then the open file with the codes, which the caller owns. Otherwise *out is NULL. NIB_E_MODEL: it belongs
 * to another model, is damaged, or has another size; NIB_E_USAGE: its residuals have other bits than
 * requested. */
nib_status residual_file_load(residual_store *r, const char *path, uint64_t n_byte, file **out,
                              nib_error *err);

#endif
