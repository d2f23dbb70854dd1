/* cuda.h - what the files of exec/cuda/ share: the back end on a GPU.
 *
 * Weights that products and norms read are copied to the GPU's memory when their block is run for the first
 * time and stay there; where they do not all fit, some blocks' matrices are copied for each visit. Rows of
 * embeddings are looked up on the host. A block's program becomes a list of steps, each a launch or two of
 * kernels/cuda/: a norm is part of the products behind it, gate and residual of those before. Everything is
 * queued on the device's one stream, and only what is read waits. Launches of a token are gathered over
 * blocks and replayed as a graph.
 *
 * Generated rows go through a block up to CUDA_MAX_ROWS together. Where the device multiplies many
 * (cuda_kernels.has_wide), rows of prompts have kernels of their own, however few they are: these give other
 * last bits, so what a row is decides, and not how many are beside it. */
#ifndef NIB_EXEC_CUDA_CUDA_H
#define NIB_EXEC_CUDA_CUDA_H

#include "exec/backend.h"
#include "kernels/cuda/cuda_kernels.h"
#include "plan/offload.h"
#include "tiers/device_blocks.h"
#include "tiers/region.h"

typedef enum step_kind { STEP_EMBED, STEP_NORM, STEP_LINEAR, STEP_ATTEND, STEP_EACH } step_kind;

/* Ops [first, first + n) of a block's program, done together. */
typedef struct step step;
struct step {
    step_kind kind;
    int first, n;
    bool feeds_cache;
    int n_w;           /* STEP_LINEAR: products, the first ops */
    const op *norm;    /* STEP_LINEAR: of what they read, done with them; NULL: none */
    const op *tail;    /* STEP_LINEAR: OP_GATE of two products, or OP_ADD of one; NULL: none */
    const op *rope;    /* STEP_ATTEND: of q, as of k; NULL: none */
    reg in, out;       /* STEP_LINEAR: what is read. STEP_LINEAR, STEP_ATTEND: the one register that is set */
    const step *takes; /* the product right behind, which takes a row of `out` as codes; NULL: none does */
    int takes_block;
};

typedef struct steps {
    step *list;
    int n;
} steps;

/* A weight in the GPU's memory. */
typedef struct gpu_weight {
    bool placed, there;
    bool apart;   /* a matrix that one block alone reads: in that block's region, or in a slot */
    bool comes;   /* to a slot */
    bool ordered; /* there, as the kernels want it */
    uint64_t at;  /* bytes into the region or the slot */
    int reader;   /* 1 + the one block that reads it; 0: none does, -1: several do */
} gpu_weight;

/* Page-locked memory with what is resident of a block. */
typedef struct locked_pages {
    int block;
    void *at;
} locked_pages;

/* Blocks that come for each visit. */
typedef struct arrivals {
    int n_block;    /* 0: all blocks stay, and nothing else is set */
    uint64_t bytes; /* of a slot */
    device_blocks blocks;
    cuda_stream load, arrange; /* lanes: copies; behind them, what puts matrices in order */
    bool asked;                /* pages were to be locked: */
    locked_pages *locked;      /* [n_locked], host memory of the pager */
    int n_locked;
    bool refused; /* they cannot be */
} arrivals;

/* Blocks that the processor computes where their weights are, in passes of generated rows. */
enum { IN_PLACE_MAX_ROWS = CUDA_MAX_ROWS };
typedef struct in_place {
    backend *host;    /* the processor's */
    plan_rates rates; /* what they are chosen by */
    bool *block;      /* [n_block] */
    bool *on_host;    /* [layers of keys and values]: the host's memory has them */
    int n;            /* blocks; 0: none */
    int first;        /* of the pass's blocks on the GPU, when it computes in place */
    bool now;         /* this pass is one */
    int64_t n_row;    /* of this pass */
    bool has_stream;  /* the residual stream is in the host's registers */
} in_place;

/* Keys and values of layers that are in host memory, in passes of prompts. */
typedef struct moves {
    uint64_t stride;    /* of a page here, of any such layer; 0: there are none */
    int64_t max_page;   /* of all sequences that were planned for */
    tier_region memory; /* pages of one layer, then: */
    int32_t *pairs;     /* [n_page, 2] up, [n_page, 2] down (cuda_move), [n_page] pages for attention */
    int64_t n_page, n_up, n_down;
    uint8_t *origin; /* pages on the host are counted from here */
    int32_t *list;   /* of `pairs`, on the host */
    size_t max_list;
} moves;

/* A launch, kept. */
typedef enum launch_kind {
    LAUNCH_LINEAR,
    LAUNCH_WIDE,
    LAUNCH_STORE,
    LAUNCH_PACK,
    LAUNCH_MOVE,
    LAUNCH_ATTEND,
    LAUNCH_PROMPT,
    LAUNCH_NORM,
    LAUNCH_EACH,
    LAUNCH_FETCH,
    LAUNCH_ADD,
    LAUNCH_BEST
} launch_kind;
typedef struct gpu_launch {
    launch_kind kind;
    int block;    /* it is of, */
    const op *of; /* and its first op: for names */
    union {
        cuda_linear linear;
        cuda_attend attend;
        cuda_move move;
        cuda_norm norm;
        cuda_each each;
        cuda_residual fetch;
        cuda_residual_add add;
        cuda_sample best;
    } u;
} gpu_launch;

/* What fetches residuals: another stream, which begins behind and ends before something of the first. */
typedef struct fetches {
    void *mapped, *there; /* the residuals' memory: the host's address, the device's */
    cuda_stream side;
    cuda_event fork, join;
} fetches;

enum { CUDA_MAX_CHANGES = 16384 /* logits of a pass, by penalties and bias */ };

enum { CUDA_MAX_GRAPHS = 16, CUDA_MIN_GRAPH = 4 /* launches */ };

/* A list of launches that came; its graph once it came again. */
typedef struct gpu_graph {
    gpu_launch *list;
    int n;
    cuda_graph graph; /* NULL: none yet */
    uint64_t used;
} gpu_graph;

/* What a plain pass of few generated rows launches depends on. */
typedef struct replay_key {
    int64_t n_row, n_head;
    int32_t n_best;
    bool logits, changes;
    const void *page_table, *origin;
    uint64_t choice; /* of residuals */
} replay_key;

typedef struct replay {
    gpu_launch *list; /* gathered */
    int n, max;
    bool parted;                /* this pass is not one list: a block's weights came for it */
    int n_flush;                /* of this pass, of lists that were not empty */
    gpu_graph *last;            /* that was launched in the last one; NULL: none was */
    replay_key key, before_key; /* of this pass; of the one before, when it was one graph: */
    gpu_graph *before;          /* NULL: it was not */
    bool ahead;   /* this pass is the same graph: it is launched as soon as the look-ups are on their way */
    bool repeats; /* the pass is of few generated rows: its lists may come again */
    gpu_graph graphs[CUDA_MAX_GRAPHS];
    uint64_t clock;
    bool refused; /* recording failed */
} replay;

/* Layers that left the GPU's memory since another program wanted it. */
typedef struct demotion {
    pager *pager;     /* that weights were loaded from; NULL: none were yet */
    int *left, n;     /* [n] blocks, rising, that stayed before */
    bool has_slots;   /* blocks came before, too */
    double looked_at; /* seconds (time_now) */
    int n_calm;       /* times that enough was free, one after the other */
} demotion;

/* What a pass does, while somebody asks. */
typedef struct spans spans;

typedef struct cuda {
    backend base;
    backend_setup setup;
    const cuda_kernels *k;
    uint64_t driver; /* bytes of VRAM, charged */
    cuda_stream stream;
    steps *blocks; /* [n_block] */
    step *all;     /* their lists */

    kernel_choice *choice; /* [n_own]: by the kernel map, of packed matrices; NULL: there is no map */
    gpu_weight *own;       /* of the weights of all blocks, by first_weight */
    int n_own;
    offload_question share;
    offload_split split;   /* of VRAM, as planned; layers leave and return meanwhile */
    int *first_weight;     /* [n_block] */
    bool *comes;           /* [n_block]: it does not stay */
    bool *ready;           /* [n_block]: all of it that stays is there */
    bool *keeps;           /* [n_block]: backend.keeps */
    bool *alone;           /* [n_block]: the GPU alone has its matrices: they have left RAM */
    uint64_t always_bytes; /* of vectors, and of matrices that several blocks read */
    tier_region always;    /* them */
    uint64_t *block_bytes; /* [n_block]: of the others */
    tier_region *stay;     /* [n_block]: them, of blocks that stay */
    demotion demotion;
    arrivals arrivals;
    in_place in_place;
    moves moves;

    /* device: */
    tier_region rows;
    float *reg[REG_COUNT]; /* REG_X has n_pass rows, REG_LOGITS n_head, every other register max_rows */
    int64_t ld[REG_COUNT]; /* floats from row to row */
    int64_t max_rows;      /* that go through a block together */
    uint8_t *told; /* what the kernels have to know about a pass, copied at once; these are in there: */
    int32_t *position, *first_page; /* [rows of the pass] */
    float **cos_sin;                /* [n_rope][rows of the pass, n_rot] */
    int32_t *page_table;            /* all segments'; there, or in `pages` */
    void *codes[REG_COUNT];         /* of one row; NULL: the register has none */
    void *linear_scratch, *wide_scratch, *attend_scratch;
    void *fetch_scratch;        /* the chosen channels of few rows; NULL: no residuals */
    int32_t *best, *best_token; /* [2, rows, n_best]: tokens, then logits; [n_head] */
    float *uniform;             /* [n_head] zeros */
    uint8_t *changes;           /* what is changed of the pass's logits; these are in there: */
    logit_row *change_rows;     /* [rows with logits]; NULL: nothing is */
    logit_change *change_list;
    void *best_scratch;
    float *part;       /* what residuals give back of a step's products, of few rows */
    tier_region pages; /* of page_table, when there are many */

    /* host: */
    tier_region host;
    float *stream_copy;       /* [n_pass, d_model or what the head reads, the wider one] */
    float *logits;            /* [n_head, n_vocab] */
    int32_t *found;           /* of `best` */
    uint8_t *telling;         /* of `told` */
    uint8_t *changing;        /* of `changes` */
    bool pinned;              /* all of it: copies wait for nothing */
    float *embed, *looked_up; /* [n_pass, d_model], one row */
    float *inv_freq;          /* [n_rot] */
    int32_t *page_list;
    size_t max_page_list;

    replay replay;
    fetches fetches;
    spans *spans; /* NULL: nobody asks, and graphs are replayed */

    backend_pass pass;
    backend_run run;
    const view *views; /* the run's weights on the host, pinned */
    uint8_t *origin;   /* pages are counted from here, in DEVICE_CUDA_ALIGN bytes */
    bool stored;       /* keys and values of rows before may be on their way: attention waits for them */
    bool wide;         /* the pass's rows take the kernels of prompts */
    const step *coded; /* the product that the last launch left a row for, as codes; NULL: none */
    int64_t coded_row; /* which one of the pass */
    nib_error late;    /* an error that came when nobody could be told */
} cuda;

static inline cuda *cuda_of(backend *b) {
    return (cuda *)(void *)b;
}
static inline const model *cuda_model(const cuda *c) {
    return layout_model(c->setup.layout);
}

/* ---- steps.c ---- */
/* Steps of all blocks. NIB_E_DEVICE names the block and the op or weight that the kernels do not have. */
nib_status steps_open(cuda *c, nib_error *err);
void steps_close(cuda *c);
/* The weights that op o reads on the GPU. */
bool steps_read_weights(const op *o);

/* ---- choices.c ---- */
/* After weights_open; the map is not needed afterwards. */
nib_status choices_make(cuda *c, nib_error *err);
void choices_drop(cuda *c);
/* Of products of few rows: what multiplies weight w of block b with so many columns of activations (rows, or
 * twice as many of 16 bits); NULL: the rule says. Of several products together the first one's counts. */
const cuda_strategy *choices_by(const cuda *c, int b, int w, int64_t n_col);

/* ---- weights.c ---- */
nib_status weights_open(cuda *c, nib_error *err);
void weights_close(cuda *c);
/* Which of them stay, beside what such rows and their keys and values take of VRAM: decided once. NIB_E_NOFIT
 * says what it takes at least. */
nib_status weights_plan(cuda *c, const backend_rows *rows, nib_error *err);
/* Memory for what was planned, charged to VRAM. */
nib_status weights_reserve(cuda *c, nib_error *err);
/* What of VRAM a block takes that stays, the driver's rounding included. */
uint64_t weights_of_block(const cuda *c, int b);
/* Between two passes: block b comes from now on, and its memory is given back. What the GPU alone had goes
 * back to RAM first. */
nib_status weights_leave(cuda *c, int b, nib_error *err);
/* The same back: it stays, and is loaded at its next visit. NIB_E_NOMEM, NIB_E_NOFIT: it comes as before. */
nib_status weights_return(cuda *c, int b, nib_error *err);
/* Those of the run's block that stay are there when it returns. */
nib_status weights_load(cuda *c, nib_error *err);
/* Queues a copy; from NULL: of the run's block, and fetched from the pager. */
nib_status weights_copy(const cuda *c, int b, int w, const void *from, uint8_t *to, cuda_stream s,
                        nib_error *err);
/* Queues its reordering. */
nib_status weights_order(const cuda *c, int b, int w, uint8_t *to, cuda_stream s, nib_error *err);
/* Weight w of block b as the kernels see it; w < 0: data is NULL. Of a block that comes: while it is taken.
 */
void weights_view(const cuda *c, int b, int w, view *out);
gpu_weight *weights_own(const cuda *c, int b, int w);
/* fn for each weight that the block's products and norms read, in their order and as often as they do. */
typedef void (*weight_fn)(const cuda *c, int b, int w, void *user);
void weights_each_read(const cuda *c, int b, weight_fn fn, void *user);

/* ---- share.c ---- */
/* What VRAM is shared among with such rows, of which `cap` is free under the cap. offload_question_clear. */
nib_status share_ask(cuda *c, const backend_rows *rows, uint64_t cap, offload_question *out, nib_error *err);
/* As backend_kind.share. */
nib_status cuda_share(const backend_setup *s, const backend_rows *rows, uint64_t cap, offload_question *out,
                      nib_error *err);
/* Sizes alone, as a GPU of 9.0 would have them. */
const cuda_kernels *share_sizes(void);

/* ---- arrivals.c ---- */
nib_status arrivals_open(cuda *c, nib_error *err);
void arrivals_close(cuda *c); /* may be opened again */
/* Nothing is on its way any more, and slots are empty. */
void arrivals_forget(cuda *c);
/* The run's block, which comes: what is queued in the stream from now on finds it; the next one is sent. */
nib_status arrivals_take(cuda *c, nib_error *err);
/* All that reads it is queued. Also between visits in a row of it. */
nib_status arrivals_give(cuda *c, nib_error *err);
/* Between two passes: block b is among them from now on, or no longer. */
void arrivals_lock(cuda *c, int b);
void arrivals_unlock(cuda *c, int b);
void arrivals_end(cuda *c);                 /* the pass is over, and the GPU has ended */
uint8_t *arrivals_at(const cuda *c, int b); /* its slot; it is there */

/* ---- in_place.c ---- */
nib_status in_place_open(cuda *c, nib_error *err);
void in_place_close(cuda *c);
/* As backend_kind.row_bytes, of what it takes on the host. Pure. */
uint64_t in_place_row_bytes(const backend_setup *s, const backend_rows *rows, int64_t n_row,
                            uint64_t *touched);
/* Layers that are computed in place: the split's. */
void in_place_follow(cuda *c, const offload_split *split);
/* After weights_plan: memory for their rows. */
nib_status in_place_reserve(cuda *c, const backend_rows *rows, nib_error *err);
/* The pass, of so many rows; the end also behind an error. */
nib_status in_place_begin(cuda *c, int64_t n_row, nib_error *err);
void in_place_end(cuda *c);
/* Whether this pass goes through block b there. */
bool in_place_has(const cuda *c, int b);
/* Block b is next: the residual stream is where it is computed. */
nib_status in_place_hand_over(cuda *c, int b, nib_error *err);
nib_status in_place_run(cuda *c, const backend_run *r, nib_error *err);

/* ---- moves.c ---- */
nib_status moves_reserve(cuda *c, int64_t n_page, nib_error *err);
void moves_close(cuda *c);
/* The pass's pages, when it goes through such layers. */
nib_status moves_begin(cuda *c, nib_error *err);
/* Where attention finds a layer whose pages on the host are as in `host`. */
void moves_attend(const cuda *c, const kv_view *host, cuda_attend *a);
/* The pages that attention reads, up; that the rows write, down. */
cuda_move moves_of(const cuda *c, const kv_view *host, const cuda_attend *a, bool up);

/* ---- memory.c ---- */
uint64_t gpu_workspace_host_bytes(const layout *l, const backend_rows *rows);
/* Of VRAM, lists of the pages of keys and values of so many bytes included. */
uint64_t gpu_workspace_device_bytes(cuda *c, const backend_rows *rows);
nib_status gpu_workspace_open(cuda *c, const backend_rows *rows, nib_error *err);
void gpu_workspace_close(cuda *c);
int64_t gpu_workspace_pages_of(const segment *s); /* when its rows are written */
bool gpu_workspace_is_coded(const cuda *c);       /* the pass has keys and values in codes */
/* What the kernels have to know about the pass's rows. */
nib_status gpu_workspace_tell(cuda *c, nib_error *err);
/* What is changed of its logits. */
nib_status gpu_workspace_change(cuda *c, nib_error *err);

/* ---- replay.c ---- */
nib_status replay_open(cuda *c, nib_error *err);
void replay_close(cuda *c);
/* One more launch, to be filled in; NULL: *status says why. */
gpu_launch *replay_add(cuda *c, launch_kind kind, const op *of, nib_status *status, nib_error *err);
/* Queues what was gathered: before anything else is queued. */
nib_status replay_flush(cuda *c, nib_error *err);
nib_status replay_flush_once(cuda *c, nib_error *err); /* the list does not come again: no graph of it */
void replay_drop(cuda *c);
/* Nothing of what came before comes again: weights have other addresses. */
void replay_forget(cuda *c); /* forgets it instead */
/* A pass begins, and ends well or not. */
void replay_begin(cuda *c);
void replay_end(cuda *c, bool well);
/* With `ahead`, instead of what was gathered: the graph of the pass before. */
nib_status replay_again(cuda *c, nib_error *err);

/* ---- residual.c ---- */
nib_status fetches_open(cuda *c, nib_error *err); /* nothing without residuals */
void fetches_close(cuda *c);
bool fetches_has(const cuda *c, int b, const step *s);
int64_t fetches_widest(const cuda *c); /* outputs of a step's products; 0: no residuals */
/* What is asked of the step's residuals; rows are the caller's. */
void fetches_ask(const cuda *c, int b, const step *s, cuda_residual *a);
int fetches_launch(const cuda *c, const cuda_residual *a);  /* on the side stream */
int fetches_add(const cuda *c, const cuda_residual_add *a); /* when it is there */

/* ---- spans.c ---- */
/* Around everything that is queued on a stream; nothing when nobody asks. CUDA's errors. */
int spans_open(const cuda *c, const nib_span *of, cuda_stream on); /* its name, lane, bytes, MACs */
int spans_close(const cuda *c, cuda_stream on);
/* A copy over the link in the stream of the kernels, in such a pair. */
nib_status spans_copy(const cuda *c, const char *what, device_lane lane, void *to, const void *from,
                      uint64_t n_byte, nib_error *err);
void spans_of_host(const cuda *c, const char *what, double start); /* until now (time_now) */
/* As backend_kind.spans_start and spans_stop. */
nib_status spans_start(cuda *c, size_t max, nib_span_scale *scale, nib_error *err);
nib_status spans_stop(cuda *c, nib_span *out, size_t *n, size_t *n_dropped, nib_error *err);
void spans_drop(cuda *c);

/* ---- span_of.c ---- */
/* A launch's name, lane, bytes and MACs. */
nib_span span_of(const cuda *c, const gpu_launch *l);

/* ---- demote.c ---- */
/* Between two passes: when another program leaves the device too little free memory, layers leave it; when
 * enough was free for a while they return. */
nib_status demote_look(cuda *c, nib_error *err);

/* ---- launch.c ---- */
/* Rows that go through a block together. */
typedef struct row_group {
    int block;
    int64_t row, n_row; /* of the pass */
    int64_t run_row;    /* the first one, of the run */
    bool two;           /* activations of 16 bits */
} row_group;
/* Queues the block's steps for them. */
nib_status launch_group(cuda *c, const row_group *g, nib_error *err);
/* Queues the head's steps before its product; *out has what that would read: rows of the pass in REG_X, else
 * of the group. */
nib_status launch_hidden(cuda *c, const row_group *g, reg *out, nib_error *err);
/* Queues looking for the pass's n_best of the first n_row rows of logits. */
nib_status launch_best(cuda *c, int64_t n_row, nib_error *err);

#endif
