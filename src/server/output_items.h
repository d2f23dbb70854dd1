/* output_items.h - shared by dialects: named events, answers in items (text, reasoning or a call each), and
 * answers as one message of these parts. */
#ifndef NIB_SERVER_OUTPUT_ITEMS_H
#define NIB_SERVER_OUTPUT_ITEMS_H

#include "server/job.h"

/* Writes "event: NAME" and value, whose "type" becomes NAME; takes the reference. */
void event_write(const char *name, json_t *value, buffer *out);

typedef struct emitter {
    job *j;
    const answer *a;
    buffer *out; /* for events; NULL: only the items are collected */
} emitter;

typedef struct item_calls {
    answer_part_fn part;             /* user: the emitter */
    void (*close)(const emitter *t); /* closes the open item, if any */
} item_calls;

int items_index(const emitter *t);               /* index of the next item */
void items_add(const emitter *t, json_t *value); /* adds a complete item; takes the reference */
/* Emits a piece of the answer's text; last: it is the final one. */
void items_emit(emitter *t, const item_calls *calls, const char *text, size_t n_byte, bool last);

/* A call's arguments as they were written, for buffer_json_raw: the text of an object, or else of a string.
 */
json_t *arguments_raw(const answer_part *p);

/* A complete answer by kind of part. */
typedef struct message_parts {
    const answer *a;
    json_t *(*call)(const answer *a, const answer_part *p); /* makes the JSON of a call */
    buffer said, thought;
    json_t *calls; /* NULL: none */
} message_parts;
bool message_parts_collect(message_parts *m); /* false: out of memory */
/* Adds reasoning (as member `thought`) and calls to the message, if there are any, and frees *m, `said` too.
 * False: out of memory, now or in message_parts_collect. */
bool message_parts_add(message_parts *m, json_t *message, const char *thought);

#endif
