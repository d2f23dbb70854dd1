/* embed.h - embeddings of texts. */
#ifndef NIB_SERVER_EMBED_H
#define NIB_SERVER_EMBED_H

#include "server/exchange.h"

/* A request for /v1/embeddings, until it is answered. */
typedef struct embedding {
    struct call_tokens *texts; /* [n] */
    size_t n, n_token;         /* of all */
    int64_t width;
    float *vectors; /* [n, width] */
    bool base64;
    uint64_t bytes; /* maximum size of the answer */
} embedding;

void embed_ask(exchange *x);
void embedding_free(embedding *e);                    /* NULL is fine */
nib_status embedding_compute(job *j, nib_error *err); /* steps the batch in between */

extern const dialect openai_embedding, ollama_embedding, ollama_one_embedding;

#endif
