/* write_gguf.h - writes a tokenizer in GGUF's form (tokenizer.ggml.*, the keys of the GGUF specification). */
#ifndef NIB_TEXT_WRITE_GGUF_H
#define NIB_TEXT_WRITE_GGUF_H

#include "formats/gguf_write.h"
#include "text/tokenizer.h"

/* n_vocab: rows of the embedding; ids that have no token get one that no text has, tokens behind
 * are left out. Byte-level BPE goes by the
 * name of the pre-tokenizer that cuts a sample text alike; BPE over characters becomes SentencePiece with the
 * merges' ranks as scores. NIB_E_MODEL: it is of another kind, or cut in a way that no name says.
 * Normalisation is not among the things that such a file says. */
nib_status tokenizer_write_gguf(const tokenizer *t, int64_t n_vocab, gguf_writer *w, nib_error *err);

/* Whether two tokenizers make the same tokens of a sample text, in which vocabularies differ. */
nib_status tokenizer_check_same(const tokenizer *a, const tokenizer *b, bool *same, nib_error *err);

#endif
