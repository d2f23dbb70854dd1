/* batch_parts.h - shared by batch.c, batch_requests.c, batch_step.c and the other files of the batch. */
#ifndef NIB_SESSION_BATCH_PARTS_H
#define NIB_SESSION_BATCH_PARTS_H

#include "session/driver.h"
#include "nib_batch.h"
#include "session/prefill_budget.h"
#include "session/fairness.h"
#include "schedule/sweeps.h"

#include <stdatomic.h>

typedef struct request {
    struct request *next;
    int64_t id;
    nib_generate_options options; /* with a copied prompt and copied stop strings */
    nib_result result;
    nib_error how; /* the status and message with which it ended */
    atomic_bool cancelled;
    int client; /* index of its counter in `fairness` */
} request;

typedef struct request_list {
    request *first, *last;
} request_list;

typedef struct slot {
    driver_slot on; /* the first member: the slots of a pass are these */
    request *r;     /* NULL: the slot is free */
    int64_t n_page; /* maximum pages that it may refer to (batch_pages.c) */
    bool paused;    /* preempted: it has no pages and waits for them */
    bool loads;     /* the disk may have more pages of its prompt, and reading them is worth it */
    double served;  /* counter of its client at the beginning of this step */
} slot;

/* The prompts of a step (batch_prompts.c). */
typedef struct batch_prompts {
    slot **heap; /* [n] of [n_slot] */
    int n;
    slot **pages; /* [mask + 1]: hash table of the pages that are computed in this step */
    int64_t mask;
    bool share; /* the pool shares pages */
} batch_prompts;

struct nib_batch {
    nib_engine *engine;
    driver driver;
    kv_pool *pages;
    kv_disk *disk;         /* NULL: none */
    double load_s;         /* average time of reading a page from it; 0: unknown */
    uint64_t n_not_loaded; /* prompts that were computed because that is faster */
    kv_formats kv;
    int64_t n_ctx, n_prompt;
    prefill_budget prefill;
    double latency_s;   /* target of a step with running answers; 0: none */
    fairness fairness;  /* under the lock */
    sweeps sweeps;      /* when requests enter */
    bool optimistic;    /* optimistic admission: before all pages that a request may need are free */
    bool prompts_first; /* nothing decodes while a prompt has rows left */
    uint64_t n_paused;  /* preempted answers; under the lock */
    uint64_t n_proposed, n_right; /* tokens; under the lock */
    int64_t n_page;               /* reserved pages, for sequences */
    kv_amount reserved;           /* with their parts */
    kv_amount n_kept;             /* reserved beyond them, for the content of ended sequences */
    int64_t n_page_free; /* n_page without all accounts (batch_pages.c); a page in several accounts is
                            subtracted for each, so it may be negative */
    int32_t n_slot;
    slot *slots; /* [n_slot] */
    batch_prompts prompts;
    slot **aged;                          /* [n_slot]: all slots, by age (batch_pages.c) */
    memory_region memory;                 /* the slots' tokens */
    atomic_bool stepping;                 /* a step is being computed */
    pthread_mutex_t lock;                 /* protects the lists and slot.r */
    request_list queue[FAIRNESS_CLIENTS]; /* the waiting requests of each client, oldest first */
    int64_t n_waiting;                    /* in all of them */
    request_list done;
    int64_t last_id;
};

/* ---- batch_requests.c ---- */
void batch_append(request_list *list, request *r);
request *batch_pop(request_list *list); /* NULL: it is empty */
void batch_request_free(request *r);    /* NULL is fine */
/* Maximum pages of the request. */
int64_t batch_pages_of(const nib_batch *b, const nib_generate_options *o);

/* Number of a prompt's tokens that may be shared with other sequences. */
static inline int64_t batch_sharable(const nib_generate_options *o) {
    return o->on_prompt_candidates ? 0 : (int64_t)o->n_prompt - 1;
}

/* ---- batch_pages.c; the lock is held ---- */
/* Preempts answers until the pages suffice for the next step. False: one that is busy would have to be. */
bool batch_preempt(nib_batch *b);
bool batch_resume(nib_batch *b); /* resumes paused answers; false: some stay paused */
/* Whether a request can be admitted; *n_page: the pages for its slot. */
bool batch_can_admit(const nib_batch *b, const nib_generate_options *o, int64_t *n_page);
/* Whether pages of a prompt are read from disk: not if computing them is faster, by the measured times. Some
 * prompts are read anyway, to measure again. */
bool batch_loads(nib_batch *b);
/* A slot without pages shares those of a running answer that hold tokens[0..n) of its own. */
void batch_share(nib_batch *b, slot *s, const int32_t *tokens, int64_t n);

/* ---- batch_prompts.c ---- */
nib_status batch_prompts_open(nib_batch *b, nib_error *err);
void batch_prompts_close(nib_batch *b);
/* Begins a step without prompts, adds those that may get rows, and sorts them. */
void batch_prompts_begin(nib_batch *b);
void batch_prompts_add(nib_batch *b, slot *s);
void batch_prompts_sort(nib_batch *b);
/* A busy slot's next page is computed. */
void batch_prompts_mark(nib_batch *b, slot *s);
/* The next prompt that gets rows, once each: of the client with the lowest counter the oldest one. NULL:
 * none.
 */
slot *batch_prompts_next(nib_batch *b);

/* ---- batch_slots.c; the lock is held ---- */
void batch_free_slot(nib_batch *b, slot *s, nib_status status, const nib_error *how);
void batch_end_cancelled(nib_batch *b);
void batch_admit(nib_batch *b); /* admits waiting requests as far as they fit */
int32_t batch_count_left(nib_batch *b);

#endif
