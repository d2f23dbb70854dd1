/* inbox.h - receives the messages of the rank before on a thread of its own, and keeps them until they are
 * taken. So a rank that computes never holds up the one that sends, and a ring in which every rank sends does
 * not stand still.
 */
#ifndef NIB_CLUSTER_INBOX_H
#define NIB_CLUSTER_INBOX_H

#include "cluster/message.h"

typedef struct inbox inbox;

enum { INBOX_ANY = -1 };

nib_status inbox_open(const rank_link *from, inbox **out, nib_error *err);
void inbox_close(inbox *in); /* after link_shut; NULL is fine */
/* Blocks until there is a message of the pass of this number, and exchanges the oldest for *to, whose memory
 * is used again. INBOX_ANY: of any pass. ended, and the errors: as in link_receive, when nothing is left. */
nib_status inbox_take(inbox *in, int64_t number, message *to, bool *ended, nib_error *err);
/* From now on who waits for a message first looks for it for two milliseconds without sleeping, if n_rank
 * ranks of this host leave cores for it: to wake two threads takes longer than a GPU's layers. */
void inbox_hurry(inbox *in, int n_rank);
/* Returns the memory of a message that inbox_take has filled, to be used again. */
void inbox_return(inbox *in, message *m);
/* Whether nothing arrives any more. Any thread. */
bool inbox_is_over(inbox *in);

#endif
