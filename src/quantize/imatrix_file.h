/* imatrix.h - reads and writes llama.cpp's importance matrices: the older binary file (.dat) and the GGUF
 * one. Both have, for each tensor name, the sums of squares of its columns' inputs, and the number of inputs;
 * of a stack of experts these of each.
 */
#ifndef NIB_QUANTIZE_IMATRIX_FILE_H
#define NIB_QUANTIZE_IMATRIX_FILE_H

#include "base/log.h"
#include "quantize/stats.h"

/* Reads either format. out->of has a row for each tensor of c. Entries of other names are skipped, with a
 * line in the log. NIB_E_MODEL: the file is damaged, a known name has another width, or no name is known;
 * NIB_E_IO; NIB_E_NOMEM. The caller calls stats_close, also after an error. */
nib_status imatrix_file_read(const char *path, const gguf_tensors *c, const logger *log, stats *out,
                             nib_error *err);

/* Writes the GGUF format of llama-imatrix; tensors without importance are left out. dataset: a description of
 * the calibration text, for people. The file is whole or absent. NIB_E_IO; NIB_E_NOMEM. */
nib_status imatrix_file_write(const char *path, const gguf_tensors *c, const stats *s, const char *dataset,
                              nib_error *err);

#endif
