/* write_gguf.h - writes a tokenizer in GGUF's form (tokenizer.ggml.*, the keys of the GGUF specification). */
#ifndef NIB_TOKENIZER_WRITE_GGUF_H
#define NIB_TOKENIZER_WRITE_GGUF_H

#include "formats/gguf_write.h"
#include "tokenizer/tokenizer.h"

/* n_vocab: rows of the embedding. Ids without a token get one that no text contains; tokens beyond n_vocab
 * are left out. Byte-level BPE is written under the name of the pre-tokenizer that splits a sample text in
 * the same way; BPE over characters becomes SentencePiece with the merges' ranks as scores. GGUF cannot
 * express a normalizer. NIB_E_MODEL: a tokenizer of another kind, or a pre-tokenizer without a name. */
nib_status tokenizer_write_gguf(const tokenizer *t, int64_t n_vocab, gguf_writer *w, nib_error *err);

/* Whether two tokenizers give the same tokens for a sample text in which vocabularies differ. */
nib_status tokenizer_check_same(const tokenizer *a, const tokenizer *b, bool *same, nib_error *err);

#endif
