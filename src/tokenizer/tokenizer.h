/* tokenizer.h - text to token ids and back: byte-level BPE, SentencePiece BPE with byte fallback, Unigram.
 * Built from GGUF metadata (tokenizer.ggml.*) or from a folder's tokenizer.json (with tokenizer_config.json).
 * Read-only after opening: any number of threads may encode and decode. */
#ifndef NIB_TOKENIZER_TOKENIZER_H
#define NIB_TOKENIZER_TOKENIZER_H

#include "base/status.h"
#include "formats/container.h"

typedef struct tokenizer tokenizer;

/* The caller closes *out. NIB_E_NOTFOUND: the checkpoint has no tokenizer; NIB_E_MODEL: it is damaged or of
 * an unknown kind, which the message names. */
nib_status tokenizer_open(const container *c, const logger *log, tokenizer **out, nib_error *err);
/* From one tokenizer.json's text, for tests and fuzzing; config may be NULL (tokenizer_config.json's text).
 */
nib_status tokenizer_open_json(const char *json, size_t n_byte, const char *config, size_t n_config,
                               tokenizer **out, nib_error *err);
void tokenizer_close(tokenizer *t); /* NULL is fine */

enum { TOKENIZE_BOS = 1, TOKENIZE_SPECIAL = 2 }; /* as in nib.h */

typedef struct token_list { /* caller's storage; zero it first; data freed by token_list_clear */
    int32_t *data;
    size_t n, cap;
} token_list;
void token_list_clear(token_list *l);

/* Appends the tokens of text [n_byte] to *out. Invalid UTF-8 is treated as by llama.cpp: byte tokens if the
 * vocabulary has them beside its characters, else U+FFFD. Linear time in n_byte (n log n at worst), also
 * without a space. With TOKENIZE_BOS a BOS is not doubled when the text itself begins with one that was
 * parsed as special. */
nib_status tokenizer_encode(const tokenizer *t, const char *text, size_t n_byte, unsigned flags,
                            token_list *out, nib_error *err);
/* The same, but special tokens are parsed only where all bytes of them have the mark 0. mark: [n_byte], NULL:
 * all are 0. A text without a special token over a marked byte has the tokens that tokenizer_encode gives it,
 * except with a tokenizer that finds special tokens in a text which its normaliser has changed: there the
 * text is cut where the mark changes. */
nib_status tokenizer_encode_marked(const tokenizer *t, const char *text, const uint8_t *mark, size_t n_byte,
                                   unsigned flags, token_list *out, nib_error *err);

/* State of streaming decoding: bytes of an unfinished character, and whether any text was produced (a leading
 * space may still be dropped before). Zero it first. */
typedef struct decode_state {
    char pending[8];
    int n_pending;
    bool started;
} decode_state;

typedef struct text_buffer {
    char *data; /* NUL-terminated after each append; freed by text_buffer_clear */
    size_t n, cap;
    size_t *left; /* bytes that may still be appended, shared by several buffers; NULL: no limit */
} text_buffer;
void text_buffer_clear(text_buffer *b);
/* Appends the text of one token to *out, in complete UTF-8 characters only. Bytes that cannot become a
 * character give U+FFFD. Special tokens give nothing unless `special` is set. NIB_E_USAGE: an id outside the
 * vocabulary. */
nib_status tokenizer_decode(const tokenizer *t, decode_state *state, int32_t token, bool special,
                            text_buffer *out, nib_error *err);
/* Ends the text: an unfinished character gives U+FFFD. */
nib_status tokenizer_decode_end(const tokenizer *t, decode_state *state, text_buffer *out, nib_error *err);

/* Appends the token's bytes within a text, which may be a part of a character. Special and unknown tokens
 * give nothing. */
nib_status tokenizer_bytes(const tokenizer *t, int32_t token, text_buffer *out, nib_error *err);

int32_t tokenizer_n_vocab(const tokenizer *t);                                  /* ids are below it */
const char *tokenizer_piece(const tokenizer *t, int32_t token, size_t *n_byte); /* as in the vocabulary */
int32_t tokenizer_bos(const tokenizer *t);                                      /* -1: none */
int32_t tokenizer_eos(const tokenizer *t);
bool tokenizer_adds_bos(const tokenizer *t);
/* Whether the token ends a text, a turn or a message: eos, eot, generation_config's eos list, and the
 * well-known names (<|im_end|>, <|eot_id|>, <end_of_turn>, <|end|>, ...) if they are special tokens. */
bool tokenizer_is_end(const tokenizer *t, int32_t token);
uint64_t tokenizer_heap_bytes(const tokenizer *t); /* for the ledger */

#endif
