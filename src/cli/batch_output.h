/* batch_output.h - the output of nibble batch: one line an answer, each whole when the next one begins.
 *
 *     {"id":"batch_req_...","custom_id":"a","response":{...},"error":null}
 *     {"id":"batch_req_...","custom_id":null,"response":null,"error":{"code","message","line":7}}
 *
 * A regular file is continued: what it answers is known from the beginnings of its lines, and a torn last
 * line is cut off. */
#ifndef NIB_CLI_BATCH_OUTPUT_H
#define NIB_CLI_BATCH_OUTPUT_H

#include "cli/key_set.h"

#include <jansson.h>

/* Kinds of keys: a custom_id, and the number of a line that is no request. */
enum { KEY_ID = 'i', KEY_LINE = 'l' };

typedef struct batch_output {
    const char *path; /* "-": stdout */
    int fd;           /* -1: stdout, or not open */
    bool regular;
    uint64_t end; /* of its whole lines */
} batch_output;

/* Opens the file and cuts a torn last line off. NIB_E_IO: it cannot be written, or another process writes it;
 * NIB_E_USAGE: its last line is not one of these. */
nib_status batch_output_open(batch_output *o, const char *path, nib_error *err);
/* Number of its lines. */
nib_status batch_output_count(const batch_output *o, uint64_t *n_line, nib_error *err);
/* Adds KEY_DONE to the key of each line. NIB_E_USAGE: a line is not one of these. */
nib_status batch_output_load(const batch_output *o, key_set *keys, nib_error *err);

/* Writes a line. custom_id: JSON; body: JSON of the response's body [n_body]. After NIB_E_IO a regular file
 * has no part of the line. */
nib_status batch_output_answer(batch_output *o, const char *custom_id, int status, const char *body,
                               size_t n_body, nib_error *err);
/* The same for a line of the input that is no request. custom_id NULL: it has none. */
nib_status batch_output_error(batch_output *o, const char *custom_id, int64_t number, const char *code,
                              const char *message, nib_error *err);
/* Makes a regular file's content safe from a loss of power, and closes. NULL err: only closes. */
nib_status batch_output_close(batch_output *o, nib_error *err);

#endif
