/* normal_form.h - Unicode normal forms in linear time (n log n for a run of combining marks). */
#ifndef NIB_TOKENIZER_NORMAL_FORM_H
#define NIB_TOKENIZER_NORMAL_FORM_H

#include "tokenizer/tokenizer.h"

/* Appends the form of valid UTF-8: NFD, NFC (compose), NFKD (compatible), NFKC (both). */
nib_status normal_form(const char *text, size_t n_byte, bool compatible, bool compose, text_buffer *out,
                       nib_error *err);

#endif
