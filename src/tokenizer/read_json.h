/* read_json.h - the parts of reading tokenizer.json; see read_json.c. */
#ifndef NIB_TOKENIZER_READ_JSON_H
#define NIB_TOKENIZER_READ_JSON_H

#include "base/jsonx.h"
#include "tokenizer/json_text.h"
#include "tokenizer/state.h"

typedef struct json_reading {
    tokenizer *t;
    const json_t *root, *config; /* config may be NULL */
    json_text vocab, merges;     /* begin NULL: missing */
    bool byte_level;             /* the pre-tokenizer maps bytes to the byte alphabet */
    nib_error *err;
} json_reading;

nib_status json_read_model(json_reading *r);      /* read_json_model.c */
nib_status json_read_added(json_reading *r);      /* read_json_special.c */
nib_status json_read_special(json_reading *r);    /* BOS, EOS: post-processor and configuration */
nib_status json_read_normalizer(json_reading *r); /* read_json_steps.c */
nib_status json_read_pre_tokenizer(json_reading *r);
nib_status json_read_decoder(json_reading *r); /* read_json_decoder.c */

/* Reads a pattern: {"String": ...} or {"Regex": ...}; *regular: the latter. */
nib_status json_read_pattern(json_reading *r, const json_t *owner, const char **text, size_t *n_byte,
                             bool *regular);
/* Reads the "type" of a section. The caller refuses an unknown one by json_refuse (NIB_E_MODEL). */
nib_status json_read_type(json_reading *r, const json_t *section, const char *what, const char **type);
nib_status json_refuse(json_reading *r, const char *what, const char *type);
nib_status json_keep(json_reading *r, const char *text, size_t n_byte, char **out,
                     size_t *n_out); /* a copy */

#endif
