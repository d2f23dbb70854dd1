/* held_back.h - the perplexity of a made file on texts that no calibration uses (HELD of profile/texts.def).
 */
#ifndef NIB_QUANTIZE_HELD_BACK_H
#define NIB_QUANTIZE_HELD_BACK_H

#include "nib.h"

/* Opens the file within the caps of `options` (plans and residuals are not used), and computes the texts in
 * chunks, as nib_session_perplexity. *ppl: NAN if the model has no tokenizer, or its context is shorter than
 * a chunk. Blocks. The errors of nib_engine_open and nib_session_perplexity. */
nib_status held_back_perplexity(const char *path, const nib_engine_options *options, double *ppl,
                                nib_error *err);

#endif
