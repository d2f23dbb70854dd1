/* inbox.c - see inbox.h. */
#include "cluster/inbox.h"

#include "base/mem.h"
#include "base/thread.h"

#include <pthread.h>
#include <stdatomic.h>

#define LOOK_S 2e-3 /* a token that takes longer is not slower by a percent or two for waking */
enum { CORES = 4 /* of each rank: one computes, one receives, two are for everything else */ };

typedef struct entry {
    struct entry *next;
    message m;
} entry;

struct inbox {
    rank_link from;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    entry *first, **last; /* in the order of their arrival */
    entry *spare;         /* with memory that is used again */
    bool over, ended;     /* nothing arrives any more */
    atomic_bool hurries;
    atomic_int n_arrived; /* messages in the list, and 1 more when it is over */
    nib_error why;
};

static entry *take_spare(inbox *in) {
    pthread_mutex_lock(&in->lock);
    entry *e = in->spare;
    in->spare = e ? e->next : NULL;
    pthread_mutex_unlock(&in->lock);
    return e ? e : mem_calloc(1, sizeof *e);
}

static void free_list(entry *list) {
    for (entry *e; (e = list);) {
        list = e->next;
        message_clear(&e->m);
        mem_free(e);
    }
}

static void *receive(void *user) {
    inbox *in = user;
    for (bool over = false; !over;) {
        nib_error why = {NIB_OK, ""};
        bool ended = false;
        entry *e = take_spare(in);
        if (!e)
            nib_fail_nomem(&why, sizeof *e, "a message of a rank");
        else if (atomic_load(&in->hurries))
            link_look(&in->from, LOOK_S);
        if (e)
            message_receive(&in->from, &e->m, &ended, &why);
        over = !e || ended || why.status != NIB_OK;
        pthread_mutex_lock(&in->lock);
        if (over) {
            in->over = true;
            in->ended = ended;
            in->why = why;
        } else {
            e->next = NULL;
            *in->last = e;
            in->last = &e->next;
        }
        atomic_fetch_add(&in->n_arrived, 1);
        pthread_cond_broadcast(&in->changed);
        pthread_mutex_unlock(&in->lock);
        if (over && e) {
            e->next = NULL;
            free_list(e);
        }
    }
    return NULL;
}

nib_status inbox_open(const rank_link *from, inbox **out, nib_error *err) {
    inbox *in = mem_calloc(1, sizeof *in);
    if (!in)
        return nib_fail_nomem(err, sizeof *in, "the messages of ranks");
    in->from = *from;
    in->last = &in->first;
    pthread_mutex_init(&in->lock, NULL);
    pthread_cond_init(&in->changed, NULL);
    const int code = pthread_create(&in->thread, NULL, receive, in);
    if (code == 0) {
        *out = in;
        return NIB_OK;
    }
    pthread_cond_destroy(&in->changed);
    pthread_mutex_destroy(&in->lock);
    mem_free(in);
    return nib_fail_errno(err, "cannot start the thread for messages:", "pthread_create", code);
}

void inbox_close(inbox *in) {
    if (!in)
        return;
    pthread_join(in->thread, NULL);
    free_list(in->first);
    free_list(in->spare);
    pthread_cond_destroy(&in->changed);
    pthread_mutex_destroy(&in->lock);
    mem_free(in);
}

/* Removes the oldest message of a pass; NULL: there is none. */
static entry *remove_first(inbox *in, int64_t number) {
    for (entry **at = &in->first; *at; at = &(*at)->next) {
        entry *e = *at;
        if (number != INBOX_ANY && e->m.head.pass != number)
            continue;
        *at = e->next;
        if (!e->next)
            in->last = at;
        atomic_fetch_sub(&in->n_arrived, 1);
        return e;
    }
    return NULL;
}

void inbox_hurry(inbox *in, int n_rank) {
    atomic_store(&in->hurries, thread_physical_cores() >= CORES * n_rank);
}

static void look(inbox *in) {
    const double end = time_now() + LOOK_S;
    while (atomic_load(&in->n_arrived) == 0 && time_now() < end)
        thread_relax();
}

nib_status inbox_take(inbox *in, int64_t number, message *to, bool *ended, nib_error *err) {
    entry *e;
    if (ended)
        *ended = false;
    if (atomic_load(&in->hurries))
        look(in);
    pthread_mutex_lock(&in->lock);
    while (!(e = remove_first(in, number)) && !in->over)
        pthread_cond_wait(&in->changed, &in->lock);
    if (e) {
        const message was = *to;
        *to = e->m;
        e->m = was;
        e->next = in->spare;
        in->spare = e;
    }
    const bool over = !e, is_end = in->ended;
    const nib_error why = in->why;
    pthread_mutex_unlock(&in->lock);
    if (over && is_end && ended) {
        *ended = true;
        return NIB_OK;
    }
    if (over && is_end)
        return nib_fail(err, NIB_E_IO, "the rank before has ended");
    return over ? nib_fail(err, why.status, "%s", why.message) : NIB_OK;
}

void inbox_return(inbox *in, message *m) {
    pthread_mutex_lock(&in->lock);
    entry *e = in->spare;
    while (e && e->m.body)
        e = e->next;
    if (e) {
        e->m = *m;
        *m = (message){0};
    }
    pthread_mutex_unlock(&in->lock);
    message_clear(m);
}

bool inbox_is_over(inbox *in) {
    pthread_mutex_lock(&in->lock);
    const bool over = in->over;
    pthread_mutex_unlock(&in->lock);
    return over;
}
