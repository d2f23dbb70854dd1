/* nib_batch.h - many answers computed together.
 *
 * A batch computes the answers of many requests with one engine. Each step is one pass through the model: one
 * row for every sequence that decodes, and as many prompt rows as fit beside them, so the weights are read
 * once for all. Requests wait until a free sequence and free KV pages exist; those of one client in the order
 * in which they were added, and the client with the fewest computed tokens goes first (session/fairness.h).
 * An answer does not depend on the other requests: its tokens are those of nib_generate.
 *
 * All calls but opening and closing may come from any thread at any time, also from a callback. One thread at
 * a time computes a step and makes all callbacks; another nib_batch_step meanwhile returns NIB_E_USAGE. */
#ifndef NIB_BATCH_H
#define NIB_BATCH_H

#include "nib.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct nib_batch nib_batch;

/* When waiting requests begin (FlexGen's schedules: Sheng et al. 2023; schedule/sweeps.h). */
typedef enum nib_schedule {
    NIB_SCHEDULE_REFILL, /* as soon as there is a place for them: continuous batching */
    NIB_SCHEDULE_BLOCK,  /* n_sequence of them together, when all answers before have ended */
    NIB_SCHEDULE_ROW     /* likewise, as many as go through a block of the model together */
} nib_schedule;

typedef struct nib_batch_options {
    int schedule;       /* a nib_schedule */
    int64_t n_spread;   /* with NIB_SCHEDULE_REFILL: n_sequence requests begin evenly during so many steps,
                           so that with equal answers memory holds the mean of their positions and not the
                           maximum; 0: at once */
    int32_t n_sequence; /* maximum number of sequences computed together; 0: 8 */
    int64_t n_ctx;      /* maximum positions of a sequence; 0: the engine's */
    int64_t n_position; /* positions of all sequences together, whose KV pages are reserved when the batch
                           opens; a full page of several sequences counts once; 0: n_sequence times n_ctx */
    int kv_type;        /* 0: the engine's */
    int64_t n_prompt;   /* maximum prompt rows in one step; 0: as many as a pass has */
    const char *prefix_cache; /* folder for KV pages of prompts and answers: later requests with a common
                                 prefix read them instead of computing, after a restart too (docs/batch.md).
                                 Copied. NULL: none */
    bool optimistic;    /* admit a request when the pages for its prompt are free, not all that it may need.
                           When the pages run out the youngest answer is preempted; its dropped pages are
                           computed again later, with the same tokens */
    bool prompts_first; /* answers decode only while no admitted request has prompt rows left, so all of them
                           decode together */
    double latency_s; /* target for the seconds of a step in which answers decode while prompts are computed.
                         The number of prompt rows is chosen from the times of past steps; some rows are
                         always computed, so a step may take twice as long as without prompts. 0: none */
    int32_t n_draft;  /* speculation: maximum number of proposed tokens computed with an answer's row, at most
                         32; chosen by their measured cost. The tokens of answers do not change. Negative:
                         -n_draft, if the engine proposes any (nib_engine_options.n_draft). 0: none */
    int32_t n_draft_min; /* minimum number of proposed tokens, whatever they cost */
    nib_engine *draft;   /* with n_draft: a draft model, smaller, with the same tokenizer, or the engine's own
                            head (nib_engine_options.ahead). It proposes tokens where the text has no long
                            match. Borrowed until the batch is closed; opened with
                            the batch's n_session and n_ctx, and used by nothing else meanwhile. NULL: none */
    uint64_t
        prefix_bytes; /* maximum size of prefix_cache; the least recently used files are removed; 0: 4 GiB */
    /* Maximum RAM for KV pages that no sequence uses any more, so that later requests with a common prefix
     * find them; an eighth of the RAM cap stays free. If the back end computes in RAM, these are more pages
     * than those of n_position. Otherwise a page is copied to RAM when the device reuses its memory, and back
     * when a request needs it; this RAM is allocated as it is needed, and kept until the engine is closed. 0:
     * none; NIB_AUTO: none, or for a device a quarter of the free RAM, at most 8 GiB. */
    uint64_t cache_ram;
} nib_batch_options;

/* Fills in the defaults; cache_ram: NIB_AUTO. */
NIB_API void nib_batch_options_init(nib_batch_options *options);
/* Reserves the memory of n_sequence sequences and n_position positions. *out is set only on success; closed
 * with nib_batch_close. NIB_E_NOFIT: the caps leave no memory for them (the message names n_session);
 * NIB_E_USAGE: an option is out of range, more sequences than rows in a pass, or an engine opened with
 * vocab_only or ahead. */
NIB_API nib_status nib_batch_open(nib_engine *engine, const nib_batch_options *options, nib_batch **out,
                                  nib_error *err);
/* Drops unfinished requests. To be called before nib_engine_close. NULL is fine. */
NIB_API void nib_batch_close(nib_batch *batch);

/* Adds a request. Everything in `options` except callbacks and `user` is copied. *id is its number.
 * NIB_E_USAGE: invalid options, or a request that can never fit (prompt and answer together are longer than
 * n_ctx or n_position). */
NIB_API nib_status nib_batch_add(nib_batch *batch, const nib_generate_options *options, int64_t *id,
                                 nib_error *err);
/* Ends the request with NIB_E_CANCELLED before the next step. No effect if it has ended already. */
NIB_API void nib_batch_cancel(nib_batch *batch, int64_t id);
/* Computes one pass, or one of generated rows and one of prompt rows if the back end has different kernels
 * for them. *n_left: requests that have not ended; 0: nothing to do. After an error, for example because
 * weights cannot be read, no answer is lost: call it again. */
NIB_API nib_status nib_batch_step(nib_batch *batch, int32_t *n_left, nib_error *err);
/* Takes the next request that has ended: its number, its result (the caller clears it) and its status (*err,
 * NULL is fine). False: none. */
NIB_API bool nib_batch_take(nib_batch *batch, int64_t *id, nib_result *result, nib_error *err);

/* Counted since the batch was opened. */
typedef struct nib_batch_counts {
    uint64_t disk_bytes;                /* of all files of prefix_cache */
    uint64_t disk_read, disk_written;   /* pages of 64 positions */
    uint64_t paused;                    /* answers that were preempted (optimistic) */
    uint64_t draft_n, draft_right;      /* proposed tokens, and accepted ones */
    uint64_t disk_damaged, disk_missed; /* damaged files; pages that were not written */
    uint64_t ram_bytes;                 /* allocated for a device's pages in RAM (cache_ram) */
    uint64_t ram_saved, ram_restored; /* pages copied there, and back; counted since the engine was opened */
} nib_batch_counts;
NIB_API void nib_batch_count(nib_batch *batch, nib_batch_counts *out); /* any thread */

#ifdef __cplusplus
}
#endif
#endif
