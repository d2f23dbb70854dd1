/* dialect.h - how the answers and faults of an API are written. */
#ifndef NIB_SERVER_DIALECT_H
#define NIB_SERVER_DIALECT_H

#include "base/buffer.h"
#include "server/fault.h"

typedef struct job job;
typedef struct answer answer;

typedef struct dialect {
    const char *stream_type; /* content type of streamed answers */
    bool keep_alive;         /* bodies may say how long the model stays loaded */
    /* Each adds to out; NULL: adds nothing. In order: the beginning of the stream, a piece of an answer's
     * text, the end of an answer, the end of the stream; and a comment that keeps the connection alive. */
    void (*begin)(job *j, buffer *out);
    void (*piece)(job *j, const answer *a, const char *text, size_t n_byte, buffer *out);
    void (*close)(job *j, const answer *a, buffer *out);
    void (*end)(job *j, buffer *out);
    void (*ping)(job *j, buffer *out);
    void (*fail)(job *j, const fault *why, buffer *out); /* an error after some pieces */
    void (*whole)(job *j, buffer *out);                  /* the answer without streaming */
    json_t *(*fault)(const fault *why);                  /* the body of a refusal */
} dialect;

#endif
