/* header.h - the metadata and the tensor list of an output file. */
#ifndef NIB_QUANTIZE_HEADER_H
#define NIB_QUANTIZE_HEADER_H

#include "quantize/job.h"

/* Of a GGUF file: its own keys, byte for byte. Of a folder: what its configuration and its tokenizer say
 * (model/as_gguf.h, text/write_gguf.h), with its chat template. Needs types and order. */
nib_status header_write(const job *j, gguf_writer *w, nib_error *err);

/* Of a folder: such a file without data (OUT.check, which takes no room and is removed) is opened and
 * compared with the folder, before the work begins. NIB_E_MODEL: it would compute something else. Where it
 * would cut a text to other tokens, a line in the log says so. */
nib_status header_check(const job *j, nib_error *err);

#endif
