/* regex_translate.h - translates a pattern in Oniguruma's Ruby syntax for PCRE2 (UTF, UCP, MULTILINE). */
#ifndef NIB_TOKENIZER_REGEX_TRANSLATE_H
#define NIB_TOKENIZER_REGEX_TRANSLATE_H

#include "tokenizer/tokenizer.h"

/* NIB_E_MODEL names the construct that PCRE2 cannot express. The caller frees *out, also on failure. */
nib_status regex_translate(const char *pattern, size_t n_byte, text_buffer *out, nib_error *err);

#endif
