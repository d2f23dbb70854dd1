/* output_items.h - shared by dialects: named events, answers in items (text, reasoning or a call each), and
 * answers as one message of these parts. */
#ifndef NIB_SERVER_OUTPUT_ITEMS_H
#define NIB_SERVER_OUTPUT_ITEMS_H

#include "server/parts.h"

/* "event: NAME", and value with that as its type; takes the reference. */
void event_write(const char *name, json_t *value, buffer *out);

typedef struct emitter {
    job *j;
    const answer *a;
    buffer *out; /* events; NULL: none, the items are wanted */
} emitter;

typedef struct item_calls {
    answer_part_fn part;             /* its user is the emitter */
    void (*close)(const emitter *t); /* the item that is open, if one is: nothing follows */
} item_calls;

int items_index(const emitter *t);               /* of the next item */
void items_add(const emitter *t, json_t *value); /* it is whole; takes the reference */
/* A piece of the answer's text; `last`: there is no more. */
void items_emit(emitter *t, const item_calls *calls, const char *text, size_t n_byte, bool last);

/* The whole answer by what its parts are. */
typedef struct message_parts {
    const answer *a;
    json_t *(*call)(const answer *a, const answer_part *p); /* how one is written */
    buffer said, thought;
    json_t *calls; /* NULL: none */
} message_parts;
bool message_parts_collect(message_parts *m); /* false: no memory */
/* Its thought under that name and its calls become members of the message, where there are any; it is freed,
 * and `said` is not there any more. False: no memory, also of what was taken. */
bool message_parts_add(message_parts *m, json_t *message, const char *thought);

#endif
