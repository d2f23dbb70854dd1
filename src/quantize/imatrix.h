/* imatrix.h - reads and writes llama.cpp's importance matrices: the older binary file (.dat) and the GGUF
 * one. Both have, for each tensor by name, sums of the squares of its columns' inputs, and their number. */
#ifndef NIB_QUANTIZE_IMATRIX_H
#define NIB_QUANTIZE_IMATRIX_H

#include "base/log.h"
#include "quantize/stats.h"

/* For the tensors of a file; *out is cleared by stats_close, also after an error. Entries of other names are
 * passed over, with a line in the log; NIB_E_MODEL: the file is damaged, a known name has another width, or
 * no name is known. */
nib_status imatrix_read(const char *path, const gguf_tensors *c, const logger *log, stats *out,
                        nib_error *err);

/* The GGUF file, as llama-imatrix writes it. dataset: what was measured with, for people. */
nib_status imatrix_write(const char *path, const gguf_tensors *c, const stats *s, const char *dataset,
                         nib_error *err);

#endif
