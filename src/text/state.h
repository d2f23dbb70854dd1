/* state.h - the parts of a tokenizer, for the files of this module.
 *
 * The path of a text: added tokens are found in it (added.h). The text between them is made valid UTF-8
 * (encode.c), normalised (normalize.h), cut again at added tokens that match normalised text, and cut into
 * pieces (split.h). Each piece goes to the model: merges.h (BPE, SentencePiece) or unigram.h. Nothing is
 * collected: each stage passes its pieces to the next. */
#ifndef NIB_TEXT_STATE_H
#define NIB_TEXT_STATE_H

#include "text/added.h"
#include "text/decoder.h"
#include "text/merges.h"
#include "text/normalize.h"
#include "text/split.h"
#include "text/tokenizer.h"
#include "text/unigram.h"
#include "text/vocab.h"

typedef enum token_model { MODEL_MERGES, MODEL_UNIGRAM } token_model;

#define TOKENIZER_AROUND 8

struct tokenizer {
    vocab vocab;
    token_model model;
    merges merges;
    unigram unigram;
    added_set added_raw;    /* found in the text as it is */
    added_set added_normal; /* found after normalising */
    normalizer normalizer;
    splitter splitter;
    decoder decoder;
    int32_t bos, eos, unk; /* -1: none */
    int32_t prefix[TOKENIZER_AROUND],
        suffix[TOKENIZER_AROUND]; /* added before and after a text: mostly BOS, or nothing */
    int n_prefix, n_suffix;
    bool takes_bytes; /* the steps and the model work on bytes, so a text need not be UTF-8 */
    bool fix_types;   /* the file's token types are not to be trusted where a name says more */
    uint8_t *end;     /* a bit a token: it ends a text or a turn; NULL: none does */
};

/* An empty tokenizer without special tokens; NULL when out of memory. Freed by tokenizer_close. */
tokenizer *tokenizer_new(void);
/* What both readers do at the end: finds end tokens by their well-known names, sets up the added tokens. */
nib_status tokenizer_finish(tokenizer *t, nib_error *err);
nib_status tokenizer_add_end(tokenizer *t, int32_t token, nib_error *err); /* out of range: ignored */

/* From GGUF metadata, or from the tokenizer.json beside a folder's weights. */
nib_status tokenizer_read_container(tokenizer *t, const container *c, const logger *log, nib_error *err);
nib_status tokenizer_read_gguf(tokenizer *t, const container *c, const logger *log, nib_error *err);
nib_status tokenizer_read_json(tokenizer *t, const char *json, size_t n_byte, const char *config,
                               size_t n_config, nib_error *err);

nib_status token_list_push(token_list *l, int32_t token, nib_error *err);

#endif
