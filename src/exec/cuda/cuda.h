/* cuda.h - the back end on a GPU. Shared by the files of exec/cuda/.
 *
 * The step loop acquires the weights of a visit in the GPU's memory (weights/device_store.h), or on the host
 * if the processor computes the block (in_place.c). Rows of embeddings are looked up on the GPU if it has the
 * table, otherwise on the host. A block's program becomes a list of steps (steps.c), each one or two launches
 * of kernels/cuda/: a norm is computed with the products that follow it, a gate or a residual addition with
 * the products before it. All work is queued in one stream, and the host waits only for results that it
 * reads. The launches of a token are collected over the blocks and replayed as one CUDA graph (replay.c).
 *
 * Generated rows go through a block up to CUDA_MAX_ROWS at a time. If the device has kernels for many rows
 * (cuda_kernels.has_wide), prompt rows use these, however few rows there are. Their last bits differ, so a
 * row's bits depend on its role and not on the number of other rows. There are also two kinds of products for
 * generated rows: `linear`, the fastest for few sequences, and `batch` for many. One of them is chosen for
 * all passes when the back end is opened. */
#ifndef NIB_EXEC_CUDA_CUDA_H
#define NIB_EXEC_CUDA_CUDA_H

#include "exec/backend.h"
#include "exec/cuda/replay.h"
#include "kernels/cuda/cuda_kernels.h"
#include "model/page_layout.h"
#include "plan/offload.h"
#include "weights/device_store.h"
#include "memory/region.h"

#include <string.h>

typedef enum step_kind {
    STEP_EMBED,
    STEP_NORM,
    STEP_LINEAR,
    STEP_ATTEND,
    STEP_EACH,
    STEP_COLUMNS,
    STEP_ROPE,
    STEP_RECURRENT,
    STEP_ROUTE,
    STEP_EXPERTS
} step_kind;

/* Ops [first, first + n) of a block's program, executed together. */
typedef struct step step;
struct step {
    step_kind kind;
    int first, n;
    bool feeds_cache;
    int n_w;        /* STEP_LINEAR, STEP_EXPERTS: number of products, which are the first ops */
    const op *norm; /* STEP_LINEAR: the norm of their input, computed with them; NULL: none */
    const op *tail; /* STEP_LINEAR, STEP_EXPERTS: OP_GATE of two products, or OP_ADD of one; NULL: none */
    const op *rope; /* STEP_ATTEND: the rotation of q, equal to that of k; NULL: none */
    reg in, out; /* in: input of STEP_LINEAR; out: the only register that STEP_LINEAR or STEP_ATTEND writes */
    const step *codes_for; /* the next product, if it reads codes of `out` that this step leaves (cuda_codes);
                              NULL: it does not */
    int codes_for_block;
    bool routes;          /* STEP_LINEAR: a router reads the outputs, so rows stay floats */
    const step *rows_for; /* STEP_EXPERTS, STEP_ROUTE: the next one, if it reads codes of the gate's output,
                             or of the router's input; NULL: none */
};

typedef struct steps {
    step *list;
    int n;
} steps;

/* Blocks that the processor computes from their weights in RAM, for generated rows. */
enum { IN_PLACE_MAX_ROWS = CUDA_MAX_ROWS };
typedef struct in_place {
    backend *host;   /* the processor's back end */
    bool *block;     /* [n_block] */
    bool *on_host;   /* [layers with keys and values]: the cache is in host memory */
    int n;           /* number of blocks; 0: none */
    int first;       /* the pass's first block on the GPU, if the pass computes blocks in place */
    bool now;        /* this pass computes blocks in place: it has generated rows */
    int64_t n_row;   /* generated rows of this pass, its first ones */
    bool has_stream; /* their residual stream is in the host's registers */
} in_place;

/* KV pages in host memory that are copied to the GPU in passes of prompt rows. */
typedef struct moves {
    uint64_t stride;      /* bytes of a page of such a layer on the GPU; 0: there are no such layers */
    int64_t max_page;     /* maximum pages of all planned sequences */
    memory_region memory; /* pages of one layer, then `pairs` */
    int32_t *pairs;       /* [n_page, 2] up, [n_page, 2] down (cuda_move), [n_page] pages for attention */
    int64_t n_page, n_up, n_down;
    uint8_t *origin; /* pages on the host are numbered from here */
    int32_t *list;   /* the host's copy of `pairs` */
    size_t max_list;
} moves;

/* Residuals are fetched while a step's products run. One of the two is in a second stream, which is forked
 * from the first one and joined to it. */
typedef struct fetches {
    void *mapped, *there; /* the residuals' memory: host address, device address */
    cuda_stream side;
    cuda_event fork, join;
    bool aside; /* added launches belong to the second stream */
} fetches;

enum { CUDA_MAX_CHANGES = 16384 /* logits of a pass that penalties and biases change */ };

/* If at least this many sequences may decode together, products of generated rows use `batch`, if the device
 * has it. `linear` is faster up to 16 rows: a step of 8b takes 2.16 ms for 8 rows, 2.62 for 16 and 4.73 for
 * 32, where `batch` takes 2.58, 2.70 and 3.11 (H200). */
enum { CUDA_MIN_BATCH = 17 };

/* The head's sketch (estimates.c). */
typedef struct estimates {
    view sketch;      /* 4 bits; data NULL: the head is computed as a whole */
    float *step;      /* cuda_shortlist.step, stored after the sketch */
    bool made;        /* the sketch has been made from the loaded head */
    int64_t max_rows; /* maximum rows of a pass that uses the sketch */
    memory_region memory;
} estimates;

/* Rotary angles in host memory (angles.c). Tables whose frequencies depend on the length are not kept. */
typedef struct angles {
    int64_t width;                   /* floats of a row of the widest table: 2 for each frequency */
    float *inv_freq, *factor;        /* [n_rope, width], [n_rope] */
    float *ahead;                    /* [n_rope][CUDA_MAX_ROWS, width]: angles for row r of the next pass */
    int64_t position[CUDA_MAX_ROWS]; /* the position that they are for; -1: none */
} angles;

/* The timeline of a pass, while it is recorded (spans.c). */
typedef struct spans spans;

struct cuda {
    backend base;
    backend_setup setup;
    const cuda_kernels *k;
    uint64_t driver; /* bytes of VRAM that the driver takes, charged */
    cuda_stream stream;
    bool batched;  /* products of generated rows use `batch`, not `linear` */
    steps *blocks; /* [n_block] */
    step *all;     /* the steps of all blocks */

    kernel_choice
        *choice;   /* [all weights]: the kernel map's choices for packed matrices; NULL: there is no map */
    uint64_t seen; /* device_store_changes when the last pass began */
    estimates estimates;
    in_place in_place;
    moves moves;

    /* device memory */
    memory_region rows;
    float *reg[REG_MAX]; /* REG_X has n_pass rows, REG_LOGITS n_head, every other register max_rows */
    int64_t ld[REG_MAX]; /* distance of two rows in floats */
    int64_t max_rows;    /* maximum rows that go through a block together */
    /* Data of a pass for the kernels, sent in one copy; contains the next three and page_table. */
    uint8_t *tables;
    int32_t *position, *first_page, *token; /* [rows of the pass] */
    int32_t *state, *save;                  /* cuda_recurrent; unused without recurrent layers */
    float **cos_sin;                        /* [n_rope][rows of the pass, n_rot] */
    int32_t *page_table;  /* page numbers of all segments; in `tables`, or in `pages` if there are many */
    void *codes[REG_MAX]; /* activation codes of few rows (cuda_codes); NULL: the register has none */
    void *linear_scratch, *wide_scratch, *attend_scratch;
    void *expert_few, *expert_wide, *expert_rows, *expert_codes,
        *expert_scratch; /* cuda_route, cuda_experts; NULL: no experts */
    void *recurrent_scratch;
    float
        *embed_there; /* rows that the host has looked up, and that are added to a register; NULL: none are */
    float *wider[4];  /* q, k, v and output of attention whose heads are no multiple of 8 wide; NULL: there is
                         none */
    unsigned *routes_ended;    /* cuda_route.ended */
    const void *rows_coded_at; /* these codes */
    const step *rows_coded;    /* the products of experts for which the last ones left codes; NULL: none */
    void *fetch_scratch;       /* the selected channels of few rows; NULL: no residuals */
    int32_t *best;             /* [2, rows, n_best]: tokens, then logits */
    uint8_t *changes;          /* changes of the pass's logits; contains the next two */
    logit_row *change_rows;    /* [rows with logits]; NULL: no changes */
    logit_change *change_list;
    void *best_scratch, *short_scratch;
    float *part;         /* contributions of residuals to a step's products, for few rows */
    memory_region pages; /* of page_table, if there are many pages */

    /* host memory */
    memory_region host;
    float *stream_copy;       /* [n_pass, the larger of d_model and the width of the head's input] */
    float *logits;            /* [n_head, n_vocab] */
    int32_t *found;           /* copy of `best` */
    uint8_t *tables_host;     /* source of `tables` */
    uint8_t *changes_host;    /* source of `changes` */
    bool pinned;              /* all of it is page-locked, so copies are asynchronous */
    float *embed, *looked_up; /* [n_pass, d_model], one row of a table */
    angles angles;
    int32_t *page_list;
    size_t max_page_list;

    replay replay;
    fetches fetches;
    spans *spans; /* NULL: no timeline is recorded, and graphs are replayed */

    backend_pass pass;
    backend_run run;
    uint8_t *origin;    /* KV pages are numbered from here, in units of DEVICE_CUDA_ALIGN bytes */
    bool has_prompts;   /* the pass has prompt rows */
    bool several[2];    /* a sequence has several rows in the pass: prompt rows; generated ones */
    bool stored;        /* the visit stores keys and values that attention must wait for */
    bool wide;          /* the visit's rows use the kernels for prompts */
    const step *coded;  /* the product for which the last launch left codes; NULL: none */
    int64_t coded_row;  /* number in the pass of the first row with codes */
    int64_t n_coded;    /* number of rows with codes */
    bool coded_whole;   /* the codes are those of wider groups (cuda_kernels.leaves_whole) */
    nib_error deferred; /* an error of a call that cannot return one; the next pass returns it */
};

static inline cuda *cuda_of(backend *b) {
    return (cuda *)(void *)b;
}
static inline const model *cuda_model(const cuda *c) {
    return layout_model(c->setup.layout);
}
/* Weight w of a loaded block for kernels; w < 0: data is NULL. Its padding is zero, since launches are
 * compared byte by byte. */
static inline void cuda_weight(const cuda *c, int b, int w, view *out) {
    memset(out, 0, sizeof *out);
    if (w >= 0)
        memcpy(out, &device_store_views(c->base.store, b)[w], sizeof *out);
}
/* Number of a block's weight among all weights of the model. */
static inline int cuda_number(const cuda *c, int b, int w) {
    return layout_pages(c->setup.layout)->first_weight[b] + w;
}

/* ---- steps.c ---- */
/* Makes the steps of all blocks. NIB_E_DEVICE names the block, and the op or weight that has no kernel. */
nib_status steps_open(cuda *c, nib_error *err);
/* backend_kind.check_ops: makes the steps of each block, but does not look at the formats of weights, which
 * the layout chooses. */
nib_status steps_check_ops(const model *m, nib_error *err);
void steps_close(cuda *c);
/* Whether the step's weights have outliers, whose products a second launch adds. */
bool steps_has_outliers(const cuda *c, int b, const step *s);

/* ---- choices.c ---- */
/* Applies the kernel map, which is not needed afterwards. */
nib_status choices_make(cuda *c, nib_error *err);
void choices_drop(cuda *c);
/* The strategy for weight w of block b and n_col columns of activations (rows, or twice as many with 16 bits)
 * in a product of few rows; NULL: the rule decides. For several products together the first one decides. */
const cuda_strategy *choices_by(const cuda *c, int b, int w, int64_t n_col);

/* ---- share.c ---- */
/* backend_kind.share. */
nib_status cuda_share(backend *open, const backend_setup *s, const backend_rows *rows, uint64_t cap,
                      offload_question *out, nib_error *err);
/* Sets the table of kernels, and whether products of generated rows use `batch`. */
void share_kernels(cuda *c, const cuda_kernels *k);

/* ---- estimates.c ---- */
/* Bytes of the head's sketch; 0: there is none with these activations, kernels and sampling. */
uint64_t estimates_bytes(const cuda *c);
/* Allocates the planned sketch. */
nib_status estimates_reserve(cuda *c, nib_error *err);
void estimates_close(cuda *c);
/* Makes the sketch at the first visit of the head, whose weights must be loaded. */
nib_status estimates_make(cuda *c, nib_error *err);
/* Whether the head's product `a` is computed in two steps. */
bool estimates_serve(const cuda *c, const cuda_linear *a);
double estimates_share(cuda *c); /* backend_kind.head_share */

/* ---- in_place.c ---- */
nib_status in_place_open(cuda *c, nib_error *err);
void in_place_close(cuda *c);
/* The host's part of backend_kind.row_bytes. It has no side effects. */
uint64_t in_place_row_bytes(const backend_setup *s, const backend_rows *rows, int64_t n_row,
                            uint64_t *touched);
/* Sets the layers that are computed in place. */
void in_place_follow(cuda *c, const offload_split *split);
/* Allocates memory for the rows of these layers. Call it after in_place_follow. */
nib_status in_place_reserve(cuda *c, const backend_rows *rows, nib_error *err);
/* Begin and end a pass. in_place_end is also called after an error. */
nib_status in_place_begin(cuda *c, nib_error *err);
void in_place_end(cuda *c);
/* Whether the visit's block is computed in place. */
bool in_place_has(const cuda *c, const visit *v);
/* Copies the residual stream of generated rows to the device that computes them in the run's visit. */
nib_status in_place_hand_over(cuda *c, nib_error *err);
nib_status in_place_run(cuda *c, const backend_run *r, nib_error *err);

/* ---- moves.c ---- */
nib_status moves_reserve(cuda *c, int64_t n_page, nib_error *err);
void moves_close(cuda *c);
/* Lists the pass's pages for layers with keys and values in host memory. */
nib_status moves_begin(cuda *c, nib_error *err);
/* Sets the pages of attention to the copies of a layer's pages, which are `host` on the host. */
void moves_attend(const cuda *c, const kv_view *host, cuda_attend *a);
/* The arguments of a copy. up: copies the pages that attention reads to the GPU; otherwise copies the pages
 * that the rows write back to the host. */
cuda_move moves_of(const cuda *c, const kv_view *host, const cuda_attend *a, bool up);

/* ---- memory.c ---- */
/* Bytes of a workspace for these rows: in host memory, and in VRAM (lists of KV pages included). */
uint64_t gpu_workspace_host_bytes(const layout *l, const backend_rows *rows);
uint64_t gpu_workspace_device_bytes(cuda *c, const backend_rows *rows);
nib_status gpu_workspace_open(cuda *c, const backend_rows *rows, nib_error *err);
void gpu_workspace_close(cuda *c);
/* Number of the segment's KV pages after its rows are written. */
int64_t gpu_workspace_pages_of(const segment *s);
/* The memory from which the pass's pages and recurrent states are numbered. */
uint8_t *gpu_workspace_origin(const cuda *c);
bool gpu_workspace_is_coded(const cuda *c); /* whether the pass's keys and values are codes (kv8, kv4) */
/* Sends positions, tokens, pages and angles of the pass's rows to the GPU. */
nib_status gpu_workspace_send_tables(cuda *c, nib_error *err);
/* Sends the changes of the pass's logits. */
nib_status gpu_workspace_send_changes(cuda *c, nib_error *err);

/* ---- angles.c ---- */
void angles_open(cuda *c); /* call it after the memory is laid out */
/* Writes the angles of the pass's rows: [rows, n_rot of the table]. */
void angles_fill(const cuda *c, int table, float *out);
/* Computes the angles of the rows' next positions, if each row belongs to another sequence. Call it while the
 * GPU computes the pass. */
void angles_ahead(cuda *c);

/* ---- residual.c ---- */
nib_status fetches_open(cuda *c, nib_error *err); /* does nothing without residuals */
void fetches_close(cuda *c);
bool fetches_has(const cuda *c, int b, const step *s);
int64_t fetches_widest(const cuda *c); /* maximum number of outputs of a step's products; 0: no residuals */
/* Sets the arguments for fetching the step's residuals, except the rows, which the caller sets. */
void fetches_args(const cuda *c, int b, const step *s, cuda_residual *a);
/* Forks the second stream, and launches the fetch in stream `on`. Returns CUDA's error. */
int fetches_launch(const cuda *c, const cuda_residual *a, cuda_stream on);
/* Joins the second stream; returns CUDA's error. */
int fetches_add(const cuda *c, const cuda_residual_add *a);

/* ---- spans.c ---- */
/* Begin and end a span around work that is queued in a stream. They have no effect unless a timeline is
 * recorded, and return CUDA's error. of: name, lane, bytes and MACs of the span. */
int spans_open(const cuda *c, const nib_span *of, cuda_stream on);
int spans_close(const cuda *c, cuda_stream on);
/* Copies over the link in the kernels' stream, and records the span of the copy. */
nib_status spans_copy(const cuda *c, const char *what, device_lane lane, void *to, const void *from,
                      uint64_t n_byte, nib_error *err);
/* Records a span of the host from `start` (time_now) to now. */
void spans_of_host(const cuda *c, const char *what, double start);
/* backend_kind.spans_start and spans_stop. */
nib_status spans_start(cuda *c, size_t max, nib_span_scale *scale, nib_error *err);
nib_status spans_stop(cuda *c, nib_span *out, size_t *n, size_t *n_dropped, nib_error *err);
void spans_drop(cuda *c);

/* ---- span_of.c ---- */
/* The name, lane, bytes and MACs of a launch. */
nib_span span_of(const cuda *c, const gpu_launch *l);

#endif
