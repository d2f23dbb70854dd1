/* driver.h - computes rows of sequences; the one place that makes passes of sequences (exec/step.h).
 *
 * A sequence is computed in a slot. A session has a driver with one slot; a batch and a draft model have many
 * slots. A pass is made in this order:
 *
 *     driver_begin   driver_add*   ( driver_propose )   driver_run or driver_answer
 *
 * With several devices, passes of different slots may be computed at the same time (step_links.n_pass): then
 * driver_start and driver_finish are the halves of driver_answer.
 *
 * driver_run gives the results to the caller. driver_answer gives the logits to the slots' answers, which
 * draw their next tokens (speculate.c says how several in one pass).
 *
 * The position of a row decides its role (backend.by_role): rows from driver_slot.generated on are generated
 * ones, also when they are computed again. A slot's rows in a pass have one role.
 *
 * One thread at a time. A pass allocates nothing. */
#ifndef NIB_SESSION_DRIVER_H
#define NIB_SESSION_DRIVER_H

#include "engine/engine.h"
#include "exec/step.h"
#include "sequence/draft.h"
#include "sequence/generation.h"
#include "sequence/sequence.h"

struct draft_model;

typedef struct driver_slot {
    sequence of;
    generation g;      /* the answer; options NULL: none */
    draft draft;       /* proposals of the answer */
    int32_t index;     /* of its sequence in the draft model */
    int64_t generated; /* position of the first generated row */
    double begun;      /* time at which a row of the answer's prompt was first computed; 0: not yet */
    double first;      /* time of its first token */
    bool refused;      /* on_prompt has asked to end the answer */
    bool busy;         /* it has rows in a pass that has started and not finished */
    /* of the current pass */
    int64_t n_row;    /* its rows; after a pass with proposals: without those of rejected tokens */
    int64_t head_row; /* the first of these rows whose logits are needed */
    int64_t n_fed;    /* rows whose logits gave a token */
    bool follows;     /* the answer takes the next row's logits */
} driver_slot;

enum { DRIVER_MAX_BEST = 64 };

/* The largest logits of one row. */
typedef struct driver_best {
    int32_t ids[DRIVER_MAX_BEST];
    float logits[DRIVER_MAX_BEST];
} driver_best;

enum { DRIVER_MAX_PASS = 8 };

typedef struct driver_pass {
    int n;                 /* slots with rows */
    int64_t n_row;         /* their rows */
    int64_t n_generated;   /* by_role: the generated ones */
    int64_t n_decode;      /* the owner's: rows that produce tokens: of answers, and prompts' last ones */
    bool decodes;          /* the owner's: no prompt has rows */
    int32_t n_best;        /* number of a row's largest logits that the answers read; 0: all */
    bool later;            /* its token is drawn after the pass */
    double begun, seconds; /* when it started; time of the pass without drawing */
    double drawn;          /* time of drawing */
    int64_t n_proposed, n_right; /* proposed tokens, and those that were drawn */
    driver_slot **order;         /* [n_slot]: slots with rows, in the order of `segments` */
    segment *segments;           /* [n_slot] */
    pass how;
    step_parts parts;
} driver_pass;

typedef struct driver {
    engine_parts on;              /* set by the owner */
    int64_t n_draft, n_draft_min; /* maximum and minimum of a slot's proposals in a pass; set by the owner */
    struct draft_model *draft_model; /* NULL: none */
    draft_cost cost;
    /* Set by the owner of a single slot. Where only one row of a pass has logits, they are written here, and
     * the token is drawn after the pass, when other threads may compute. NULL: it is drawn during the pass.
     */
    float *logits; /* [n_vocab] */
    driver_best best;
    driver_slot **parted;                 /* [n_slot]: scratch for ordering slots */
    driver_pass now;                      /* the one that is made, or has finished */
    driver_pass started[DRIVER_MAX_PASS]; /* [n_started], the oldest first; then unused ones */
    int n_started, max_started;
} driver;

/* Allocates memory for passes of at most n_slot slots, of which n_pass are computed at the same time. The
 * rest is zero; the owner sets `on`. */
nib_status driver_open(driver *d, int32_t n_slot, int n_pass, nib_error *err);
void driver_close(driver *d); /* zeroed is fine; the slots are the owner's */
/* Opens the draft model in the engine `with` (draft_model_open), unless it is NULL or nothing can be proposed
 * for the model of `target`. */
nib_status driver_open_draft(driver *d, nib_engine *with, nib_engine *target, int32_t n_slot, int64_t n_ctx,
                             nib_error *err);

/* Whether tokens may be proposed, so that recurrent states go back (sequence_memory). */
static inline bool driver_goes_back(const driver *d) {
    return d->n_draft > 0 && !d->on.step->links;
}
/* Prepares a slot for an answer, which the owner opens in slot->g. */
void driver_slot_begin(driver_slot *s);
/* Positions that a request for at most n_ctx of them may need; its last token is not computed. */
int64_t driver_positions(const nib_generate_options *o, int64_t n_ctx);
/* Rows that the pass has left for the role of the slot's next row. */
int64_t driver_rows_left(const driver *d, const driver_slot *s);
/* Whether the slot's only row is that of its last token, beside rows that are computed again. */
static inline bool driver_decodes(const driver_slot *s) {
    return sequence_left(&s->of) == 1;
}

void driver_begin(driver *d);
/* Adds the slot's next rows, at most n_max, with the logits that its answer needs: of the last token, and of
 * tokens of the prompt that are scored. */
void driver_add(driver *d, driver_slot *s, int64_t n_max);
/* Adds rows of proposed tokens, to a pass whose slots all decode. The errors of the draft model. */
nib_status driver_propose(driver *d, nib_error *err);
/* Runs the pass and advances its sequences. how: the receivers, without segments. The errors of step_pass;
 * the sequences have not advanced then. */
nib_status driver_run(driver *d, const pass *how, nib_error *err);
/* The same, for slots that have an answer. cancel: may be NULL. */
nib_status driver_answer(driver *d, const canceller *cancel, nib_error *err);
/* Starts the pass, whose slots are busy until it has finished; fewer than max_started have started. */
nib_status driver_start(driver *d, const canceller *cancel, nib_error *err);
/* Finishes the pass that has started first, which is `now` then. After an error none has started any more:
 * their sequences have not advanced. */
nib_status driver_finish(driver *d, nib_error *err);
/* Ends all that have started, as if they had not. */
void driver_drop(driver *d);
/* Draws the answer's next token from the logits of the sequence's last one. */
void driver_feed(driver_slot *s, const int32_t *ids, const float *logits);

#endif
