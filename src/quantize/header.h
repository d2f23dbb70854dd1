/* header.h - the metadata and the tensor list of an output file. */
#ifndef NIB_QUANTIZE_HEADER_H
#define NIB_QUANTIZE_HEADER_H

#include "quantize/job.h"

/* Writes the keys and the list of tensors. A GGUF input's keys are copied byte for byte. A folder's come from
 * its configuration and its tokenizer (model/as_gguf.h, tokenizer/write_gguf.h), with its chat template.
 * Needs j->types and j->order. NIB_E_MODEL: a tensor's type has no number in GGUF, or GGUF cannot express a
 * part of the folder's configuration; NIB_E_IO; NIB_E_NOMEM. */
nib_status header_write(const job *j, gguf_writer *w, nib_error *err);

/* Checks a folder's header before the work begins; a GGUF input is not checked. Writes a file without data
 * (OUT.check, which takes no disk space and is removed), opens it and compares it with the folder.
 * NIB_E_MODEL: the file would compute something else; NIB_E_IO; NIB_E_NOMEM. If the file would tokenize a
 * text differently, a line is logged. */
nib_status header_check(const job *j, nib_error *err);

#endif
