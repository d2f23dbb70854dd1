/* state.h - the parts of a tokenizer, for the files of this module. The stages of encoding: find added tokens
 * (added.h); make the text between them valid UTF-8 (encode.c); normalise it (normalize.h); cut it at added
 * tokens that match normalised text; cut it into pieces (split.h); encode each piece by the model: merges.h
 * (BPE, SentencePiece) or unigram.h. Each stage passes its pieces directly to the next; no list of pieces is
 * stored. */
#ifndef NIB_TOKENIZER_STATE_H
#define NIB_TOKENIZER_STATE_H

#include "tokenizer/added.h"
#include "tokenizer/decoder.h"
#include "tokenizer/merges.h"
#include "tokenizer/normalize.h"
#include "tokenizer/split.h"
#include "tokenizer/tokenizer.h"
#include "tokenizer/unigram.h"
#include "tokenizer/vocab.h"

typedef enum token_model { MODEL_MERGES, MODEL_UNIGRAM } token_model;

#define TOKENIZER_AROUND 8

struct tokenizer {
    vocab vocab;
    token_model model;
    merges merges;
    unigram unigram;
    added_set added_raw;    /* found in the original text */
    added_set added_normal; /* found after normalising */
    bool special_normal;    /* one of these is a special token */
    normalizer normalizer;
    splitter splitter;
    decoder decoder;
    int32_t bos, eos, unk; /* -1: none */
    int32_t prefix[TOKENIZER_AROUND],
        suffix[TOKENIZER_AROUND]; /* added before and after a text: mostly BOS, or nothing */
    int n_prefix, n_suffix;
    bool takes_bytes; /* the steps and the model work on bytes, so a text need not be UTF-8 */
    bool fix_types;   /* a token's well-known name overrides its type in the file */
    uint8_t *end;     /* a bit for each token: it ends a text or a turn; NULL: none does */
};

nib_status tokenizer_add_end(tokenizer *t, int32_t token, nib_error *err); /* out of range: ignored */

/* From GGUF metadata, or from the tokenizer.json beside a folder's weights. */
nib_status tokenizer_read_container(tokenizer *t, const container *c, const logger *log, nib_error *err);
nib_status tokenizer_read_gguf(tokenizer *t, const container *c, const logger *log, nib_error *err);
nib_status tokenizer_read_json(tokenizer *t, const char *json, size_t n_byte, const char *config,
                               size_t n_config, nib_error *err);

nib_status token_list_push(token_list *l, int32_t token, nib_error *err);

#endif
