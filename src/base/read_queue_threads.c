/* read_queue_threads.c - reads by two threads, where io_uring is not available. Two keep a disk busy while
 * each of them is between two reads. */
#include "base/mem.h"
#include "base/read_queue_parts.h"

#include <pthread.h>
#include <string.h>

enum { HELPERS = 2 };

typedef enum turn_state { TURN_FREE, TURN_WAITING, TURN_READING, TURN_DONE } turn_state;

typedef struct turn {
    turn_state state;
    uint64_t order; /* of submission: first come, first read */
    read_request what;
    bool whole;
} turn;

typedef struct helpers {
    pthread_mutex_t lock;
    pthread_cond_t asked, done;
    pthread_t threads[HELPERS];
    int n_thread, depth;
    bool stop;
    uint64_t next_order;
    turn turns[MAX_READ_QUEUE];
} helpers;

static turn *find(helpers *h, turn_state state) {
    turn *found = NULL;
    for (int i = 0; i < h->depth; i++)
        if (h->turns[i].state == state && (!found || h->turns[i].order < found->order))
            found = &h->turns[i];
    return found;
}

static void *help(void *arg) {
    helpers *h = arg;
    pthread_mutex_lock(&h->lock);
    while (!h->stop) {
        turn *t = find(h, TURN_WAITING);
        if (!t) {
            pthread_cond_wait(&h->asked, &h->lock);
            continue;
        }
        t->state = TURN_READING;
        read_request what = t->what;
        pthread_mutex_unlock(&h->lock);
        nib_error ignored; /* the waiting thread repeats a failed read and reports its error */
        bool whole = file_read_at(what.f, what.out, what.offset, what.min, &ignored) == NIB_OK;
        pthread_mutex_lock(&h->lock);
        t->whole = whole;
        t->state = TURN_DONE;
        pthread_cond_signal(&h->done);
    }
    pthread_mutex_unlock(&h->lock);
    return NULL;
}

static void helpers_close(void *self) {
    helpers *h = self;
    pthread_mutex_lock(&h->lock);
    h->stop = true;
    pthread_cond_broadcast(&h->asked);
    pthread_mutex_unlock(&h->lock);
    for (int i = 0; i < h->n_thread; i++)
        pthread_join(h->threads[i], NULL);
    pthread_mutex_destroy(&h->lock);
    pthread_cond_destroy(&h->asked);
    pthread_cond_destroy(&h->done);
    mem_free(h);
}

nib_status read_threads_open(int depth, void **out, nib_error *err) {
    helpers *h = mem_calloc(1, sizeof *h);
    if (!h)
        return nib_fail_nomem(err, sizeof *h, "a queue of reads");
    h->depth = depth;
    pthread_mutex_init(&h->lock, NULL);
    pthread_cond_init(&h->asked, NULL);
    pthread_cond_init(&h->done, NULL);
    for (int i = 0; i < HELPERS; i++) {
        int code = pthread_create(&h->threads[i], NULL, help, h);
        h->n_thread += code == 0;
        if (code && i == 0) {
            helpers_close(h);
            return nib_fail_errno(err, "cannot start a reader thread:", "pthread_create", code);
        }
        if (code)
            break;
    }
    *out = h;
    return NIB_OK;
}

static int helpers_start(void *self, const int *tags, int n, const read_request *what) {
    helpers *h = self;
    pthread_mutex_lock(&h->lock);
    for (int i = 0; i < n; i++)
        h->turns[tags[i]] = (turn){TURN_WAITING, h->next_order++, what[tags[i]], false};
    pthread_cond_broadcast(&h->asked);
    pthread_mutex_unlock(&h->lock);
    return n;
}

static int helpers_finish(void *self, int64_t *got) {
    helpers *h = self;
    pthread_mutex_lock(&h->lock);
    turn *t;
    while (!(t = find(h, TURN_DONE)))
        pthread_cond_wait(&h->done, &h->lock);
    *got = t->whole ? (int64_t)t->what.min : 0;
    t->state = TURN_FREE;
    pthread_mutex_unlock(&h->lock);
    return (int)(t - h->turns);
}

static bool helpers_ready(void *self) {
    helpers *h = self;
    pthread_mutex_lock(&h->lock);
    const bool ready = find(h, TURN_DONE) != NULL;
    pthread_mutex_unlock(&h->lock);
    return ready;
}

const read_backend read_threads = {helpers_close, helpers_start, helpers_finish, helpers_ready};
