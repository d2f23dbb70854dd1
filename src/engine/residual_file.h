/* residual_file.h - residuals in a file of their own, which stands for the original: 'nibble quantize
 * --keep-residual' writes it beside the base. 4 KiB of header, then the codes and scales of each matrix, as
 * they are in memory (quant/residual.h) and in the order of the base's layout. The header has the key of the
 * base's contents, so residuals of another model are refused. */
#ifndef NIB_ENGINE_RESIDUAL_FILE_H
#define NIB_ENGINE_RESIDUAL_FILE_H

#include "engine/residual_make.h"

enum { RESIDUAL_FILE_HEAD = 4096 /* bytes before the first matrix */ };

/* Whether there is such a file. */
bool residual_file_is(const char *path);
/* Begins one for the core's model, of n_byte of residuals in requested.residual_bits, which the caller
 * writes. */
nib_status residual_file_begin(const engine_core *e, const char *path, uint64_t n_byte, file_writer **out,
                               nib_error *err);
/* Reads one of n_byte of residuals into r->memory, or, with is_on_disk, their scales; *out is then the file
 * with the codes, which the caller owns, else NULL. NIB_E_MODEL: it belongs to another model, is damaged, or
 * has another size; NIB_E_USAGE: its residuals have other bits than requested. */
nib_status residual_file_load(residual_store *r, const char *path, uint64_t n_byte, file **out,
                              nib_error *err);

#endif
