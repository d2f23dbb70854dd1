/* batch_file.h - a file of requests in OpenAI's batch format, and the file of their answers: which lines are
 * asked, and what is written about each. nibble batch and /v1/batches use it.
 *
 *     line --> answered already: kept
 *          --> not a request: a line with an error
 *          --> server_ask --> computed, with others --> server_take --> a line with a response
 *                                                                  --> failed for a passing reason: none
 *
 * Each line is written when its answer is complete, so the next run can continue after any interruption: it
 * keeps the answers to the same requests, and asks all others again. One thread, that of server_ask. */
#ifndef NIB_SERVER_BATCH_FILE_H
#define NIB_SERVER_BATCH_FILE_H

#include "server/batch_output.h"
#include "server/line_reader.h"
#include "server/server.h"

enum { BATCH_ENVELOPE_BYTES = 64 << 10 /* of a line, outside its body */ };

/* A line that is a request. */
typedef struct batch_request {
    json_t *line;
    const char *custom_id, *method, *url; /* in line */
    size_t n_custom_id;
    uint64_t hash;    /* of what is asked */
    char *tag, *body; /* tag: the hash and the custom_id as JSON; NULL: no request */
} batch_request;

typedef struct batch_file {
    const char *name;     /* of the input, for messages; borrowed */
    const char *endpoint; /* the only url that is taken; NULL: all. Borrowed */
    line_reader in;       /* `fd` and `max` are the caller's */
    batch_output out;     /* the caller opens and closes it */
    key_set keys;         /* likewise; of the output's lines */
    uint64_t values;      /* maximum bytes of a line's values */
    int max_in_row;       /* after so many failures in a row no line is read any more */
    int64_t n_line;       /* lines of the input; 0: not known */
    bool in_order;        /* answers are written in the order of their requests */
    bool (*stops)(void);  /* true: asking ends early; NULL: never */
    int64_t max_line;     /* said where the keys of more lines have no memory */
    /* state; initially 0: */
    batch_request next; /* read, not yet given to the server */
    size_t n_asked;     /* replies that are not taken yet */
    bool ended;         /* no more lines, or they cannot be read (unread has the error) */
    nib_error unread;
    bool waits; /* no line can be read from the pipe now */
    /* Lines. n_refused: the response is an error; n_failed: for a passing reason, which `failed` has;
     * n_retried: those among all of them that the output had without an answer, or with one to another text;
     * n_in_row: failed since the last reply */
    int64_t n_answered, n_refused, n_invalid, n_failed, n_kept, n_retried, n_in_row;
    nib_error failed;
    uint64_t n_prompt, n_predicted; /* tokens */
} batch_file;

/* Asks more requests while fewer than n_most wait for their replies. NIB_OK also while the server takes no
 * more. */
nib_status batch_file_ask(batch_file *b, server *s, size_t n_most, nib_error *err);
/* Writes what is complete. The replies of all local requests are taken to be this file's. */
nib_status batch_file_write(batch_file *b, server *s, nib_error *err);
void batch_file_clear(batch_file *b); /* frees the state */
/* Lines of which something is known. */
int64_t batch_file_done(const batch_file *b);

#endif
