/* batch_output.h - the output of nibble batch: one line for each answer, each complete before the next
 * begins.
 *
 *     {"id":"batch_req_...","custom_id":"a","response":{...},"error":null}
 *     {"id":"batch_req_...","custom_id":null,"response":null,"error":{"code","message","line":7}}
 *
 * A regular file is continued: the beginnings of its lines tell which requests it answers, and an incomplete
 * last line is cut off. */
#ifndef NIB_CLI_BATCH_OUTPUT_H
#define NIB_CLI_BATCH_OUTPUT_H

#include "cli/key_set.h"

#include <jansson.h>

/* Kinds of keys: a custom_id, or the number of a line that is not a request. */
enum { KEY_ID = 'i', KEY_LINE = 'l' };

typedef struct batch_output {
    const char *path; /* "-": stdout */
    int fd;           /* -1: stdout, or not open */
    bool regular;
    uint64_t end; /* of its whole lines */
} batch_output;

/* Opens the file and cuts an incomplete last line off. NIB_E_IO: it cannot be written, or another process
 * writes it; NIB_E_USAGE: its last line was not written by a batch. */
nib_status batch_output_open(batch_output *o, const char *path, nib_error *err);
/* Number of its lines. */
nib_status batch_output_count(const batch_output *o, uint64_t *n_line, nib_error *err);
/* Adds KEY_DONE to the key of each line. NIB_E_USAGE: a line was not written by a batch. */
nib_status batch_output_load(const batch_output *o, key_set *keys, nib_error *err);

/* Writes a line. custom_id: JSON; body: JSON of the response's body [n_body]. After NIB_E_IO a regular file
 * has no part of the line. */
nib_status batch_output_answer(batch_output *o, const char *custom_id, int status, const char *body,
                               size_t n_body, nib_error *err);
/* The same for a line of the input that is not a request. custom_id NULL: it has none. */
nib_status batch_output_error(batch_output *o, const char *custom_id, int64_t number, const char *code,
                              const char *message, nib_error *err);
/* Flushes a regular file to disk, and closes it. NULL err: only closes. */
nib_status batch_output_close(batch_output *o, nib_error *err);

#endif
