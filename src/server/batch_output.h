/* batch_output.h - the output of nibble batch: one line for each answer, each complete before the next
 * begins.
 *
 *     {"id":"batch_req_...","custom_id":"a","response":{...},"error":null}
 *     {"id":"batch_req_...","custom_id":null,"response":null,"error":{"code","message","line":7}}
 *
 * A regular file is continued: the beginnings of its lines tell which requests it answers, and an incomplete
 * last line is cut off. The id begins with a hash of what was asked, so that an answer to another text is not
 * taken for one to this. Of several lines with one custom_id, or one number, the last one counts. */
#ifndef NIB_SERVER_BATCH_OUTPUT_H
#define NIB_SERVER_BATCH_OUTPUT_H

#include "server/key_set.h"

#include <jansson.h>

/* Kinds of keys: a custom_id, or the number of a line that is not a request. Their values are of
 * batch_output_state. */
enum { KEY_ID = 'i', KEY_LINE = 'l' };

/* The hash of a request, or of a line that is none (method and url NULL, the line [n_body]). */
uint64_t batch_output_hash(const char *method, const char *url, const char *body, size_t n_body);
/* What a line of the output says: the response's status for what was asked, 0: there is none. Only an answer
 * with the status 200 has the value `hash`. */
static inline uint64_t batch_output_state(uint64_t hash, int status) {
    return hash + (uint64_t)(status - 200);
}

typedef struct batch_output {
    const char *path; /* "-": stdout */
    int fd;           /* -1: stdout, or not open */
    bool regular;
    bool (*write)(const char *data, size_t n_byte); /* to stdout; set before opening "-" */
    uint64_t end;                                   /* of its whole lines */
} batch_output;

/* Opens the file and cuts an incomplete last line off. NIB_E_IO: it cannot be written, or another process
 * writes it; NIB_E_USAGE: its last line was not written by a batch. */
nib_status batch_output_open(batch_output *o, const char *path, nib_error *err);
/* Number of its lines. */
nib_status batch_output_count(const batch_output *o, uint64_t *n_line, nib_error *err);
/* Puts the state of each line at its key. NIB_E_USAGE: a line was not written by a batch. */
nib_status batch_output_load(const batch_output *o, key_set *keys, nib_error *err);

/* Writes a line. hash: of the request. custom_id: JSON; body: JSON of the response's body [n_body]. After
 * NIB_E_IO a regular file has no part of the line. */
nib_status batch_output_answer(batch_output *o, uint64_t hash, const char *custom_id, int status,
                               const char *body, size_t n_body, nib_error *err);
/* The same for a line of the input that is not a request. custom_id NULL: it has none. */
nib_status batch_output_error(batch_output *o, uint64_t hash, const char *custom_id, int64_t number,
                              const char *code, const char *message, nib_error *err);
/* Flushes a regular file to disk, and closes it. NULL err: only closes. */
nib_status batch_output_close(batch_output *o, nib_error *err);

#endif
