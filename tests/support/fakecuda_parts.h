/* fakecuda_parts.h - shared by the files of the fake CUDA table (fakecuda.h): its state, the beginning of
 * every call, addresses, and the launches of a graph. */
#ifndef NIB_TESTS_FAKECUDA_PARTS_H
#define NIB_TESTS_FAKECUDA_PARTS_H

#include "support/fakecuda.h"

#include "kernels/kernels.h"

/* Set in addresses of kernels alone, on x86-64 as on AArch64. */
#define DEVICE_BIT ((uintptr_t)1 << 55)
enum { OUT_OF_MEMORY = 2, MISUSE = 700, HEADER = 256, MAX_FRESH = 4096, MAX_REORDERED = 256 };

/* A launch that was recorded: the row of the table, and what it takes. */
typedef struct kept_launch {
#define ROW(name, arguments) int (*name)(const arguments *a, cuda_stream s);
    CUDA_LAUNCHES(ROW)
#undef ROW
    union {
#define ARGUMENTS(name, arguments) arguments name;
        CUDA_LAUNCHES(ARGUMENTS)
#undef ARGUMENTS
    } u;
} kept_launch;
typedef struct graph {
    kept_launch *list;
    size_t n;
} graph;

extern struct fake_state {
    size_t memory, used, others, driver, peak, held;
    long calls, fail_at, n_taken, n_wide, n_batch, n_mixed, n_sparse, n_prompt, n_moved;
    size_t n_sent;
    int error;
    const char *wrong;
    const void *reordered[MAX_REORDERED]; /* matrices, since the host waited */
    size_t n_reordered, n_recorded;       /* those of them that an event follows */
    const void *fresh[MAX_FRESH];         /* keys that launches wrote since the last copy */
    size_t n_fresh;
    graph *recording; /* NULL: launches run */
    graph *waiting;   /* launches from one on that waits for the host; NULL: none does */
    cuda_stream waits_in;
    bool goes_on; /* they are run now */
    long n_replayed, n_sampled, n_fetched, n_fetched_first, n_short, n_embedded;
    long n_by[3]; /* rows of products by the rule, Split, Bitwise */
    long late;    /* microseconds of products of strategies, in addition to those of calls */
    bool replaying, prompts_differ, no_wide, fails_once;
    enum { IDLE, FORKED, FETCHED, JOINED } side; /* state of the second stream: */
    cuda_stream fork_from, fork_to;              /* it waited for an event of the first */
    bool fetched_first;                          /* the fetch is in the first */
    long n_aside;                                /* launches in the second since then */
} fake;

typedef struct fake_stream fake_stream;

typedef struct fake_event {
    long when;      /* in calls plus the time of products; 0: never */
    cuda_stream of; /* its stream, and */
    long n_aside;   /* the number of launches of the second stream before it */
    size_t queued;  /* the number of late works of its stream before it */
} fake_event;

/* fake_cuda_wrong returns the first misuse. */
int fake_misuse(const char *what);
/* Where a launch is stored while launches are recorded; NULL: it runs. */
kept_launch *fake_keep(void);
#define KEEP(row, launch)                                                                                    \
    do {                                                                                                     \
        kept_launch *k_ = fake_keep();                                                                       \
        if (k_) {                                                                                            \
            k_->row = launch;                                                                                \
            k_->u.row = *a;                                                                                  \
            return 0;                                                                                        \
        }                                                                                                    \
    } while (0)
/* From now on launches are kept until the host has answered what this stream's next one waits for. */
void fake_wait_for_host(cuda_stream s);
bool fake_is_answered(const kept_launch *k); /* or it needs no answer (fakecuda_experts.c) */
/* What every call does first: counts itself, and gives the error that it was told to fail with. */
int fake_call(void);
#define CALL()                                                                                               \
    do {                                                                                                     \
        const int e_ = fake_call();                                                                          \
        if (e_)                                                                                              \
            return e_;                                                                                       \
    } while (0)

/* fakecuda_streams.c: queue a copy, which may be made later; `to` and `from` are real addresses. */
void fake_copy(void *to, const void *from, size_t bytes, bool to_host, cuda_stream s);
void fake_gtile_later(const view *w, bool to_gpu, cuda_stream s);
void fake_move_later(const cuda_move *a, cuda_stream s);
fake_stream *fake_stream_open(void);
void fake_stream_close(fake_stream *s);
size_t fake_stream_queued(const fake_stream *s);
void fake_stream_finish(fake_stream *s); /* the host waits for all of it */
/* The stream goes on after the first `at` late works of another one. */
void fake_stream_wait(fake_stream *s, fake_stream *of, size_t at);
void fake_streams_reset(void);
/* What is queued: */
void fake_gtile_now(const view *w, bool to_gpu);
void fake_move_now(const cuda_move *a);

/* The beginning of a launch that neither fetches nor adds residuals: its stream is checked too. */
int fake_launch(cuda_stream s);
#define LAUNCH(s)                                                                                            \
    do {                                                                                                     \
        const int e_ = fake_launch(s);                                                                       \
        if (e_)                                                                                              \
            return e_;                                                                                       \
    } while (0)

bool is_there(const void *p); /* an address of the device */
void *real(const void *p);    /* the memory under it; NULL of NULL; ends the test for the host's addresses */

/* A row that a launch leaves for the next one, with its norm's weights. */
void fake_leave(const cuda_codes *to, const float *row, int64_t ld, int64_t n_row, int64_t k, bool whole);
bool fake_leaves_whole(const cuda_linear *a);
bool fake_sums(const cuda_linear *a);
void fake_sum(const cuda_reduce *a); /* its rows alone: no codes */
int64_t fake_left_rows(const view *w);
enum { FAKE_LEFT_ROWS = 16 };

/* Whether one of these matrices may still be being reordered. */
bool fake_is_put_in_order(const view *w, int n_w);
/* A copy of the matrix in the processor's order, without outliers: these end a panel. free(data). */
view fake_as_qtile(const view *w);
int fake_multiply(const cuda_linear *a); /* a launch's rows */

/* Rows of the table: those of its launches, */
#define FAKE(name, arguments) int fake_##name(const arguments *a, cuda_stream s);
CUDA_LAUNCHES(FAKE)
#undef FAKE
/* and others. fakecuda_linear.c */
int fake_gtile(const view *w, bool to_gpu, cuda_stream s);
size_t fake_codes_bytes(int64_t k);
size_t fake_linear_scratch(int64_t n_row, int64_t k, bool two);
const cuda_strategy *fake_strategies(int *n);
const cuda_unit *fake_units(int *n);
bool fake_has_wide(void);
size_t fake_wide_scratch(int64_t n_row, int64_t k);
bool fake_has_batch(void);
size_t fake_mixed_scratch(int64_t n_row, int64_t k);
/* fakecuda_reduce.c */
int fake_share_new(void **p, size_t bytes, cuda_handle *handle);
int fake_share_open(void **p, const cuda_handle *handle);
int fake_share_close(void *p);
bool fake_is_shared(const void *p);
/* fakecuda_attend.c */
size_t fake_attend_scratch(int64_t n_row, int64_t n_head, int64_t d_head);
/* fakecuda_rows.c */
size_t fake_residual_scratch(int64_t n_row, int64_t k, int64_t k_chunk);
size_t fake_sample_scratch(int64_t n_row);
/* fakecuda_experts.c */
int fake_handed_down(const uint32_t *down, uint32_t count, cuda_stream s);
/* fakecuda_shortlist.c */
bool fake_sketch_takes(const view *head);
int fake_sketch(const view *head, const view *sketch, float *step, cuda_stream s);
size_t fake_shortlist_scratch(void);

#endif
