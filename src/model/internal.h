/* internal.h - shared by the files of model/. */
#ifndef NIB_MODEL_INTERNAL_H
#define NIB_MODEL_INTERNAL_H

#include "model/config.h"

struct model {
    arena mem; /* owns everything below */
    container *c;
    const arch_desc *arch;
    const char *gguf_arch; /* NULL: a HF folder */
    config cfg;
    const char *name;
    block *blocks;
    int n_block;
    struct {
        const char *name;
        int64_t width; /* the widest use in any block; 0: not used */
    } regs[REG_MAX];
    int n_reg;
    uint64_t n_param;
    int64_t n_state;            /* floats of one sequence's recurrent state */
    int n_site;                 /* inputs of products (sites.h) in the blocks made so far */
    int stage_first, stage_end; /* stage.h; end 0: there is none */
    model_share share;
    bool wide;       /* formats without integer zeros (pack_widen) */
    bool ahead;      /* this is the head that predicts later tokens (ahead.c) */
    int first_layer; /* number of its layer in the names of tensors; else 0 */
    model *next;     /* this model's head, which shares the container; NULL: none */
};

enum { BLOCK_MAX_WEIGHT = 64 };
enum { STATE_ALIGN = 16 }; /* floats: the state of each op begins at a multiple */

/* The weights of one block under construction: the index of each slot's weight and bias. */
typedef struct bound {
    weight weights[BLOCK_MAX_WEIGHT];
    int n;
    struct {
        bool there;     /* the slot is used: it has a weight, or is a norm without one */
        bool whole_row; /* T_ROW_NORM */
        bool per_entry; /* a head-by-head norm whose weight has an entry for the whole row */
        bool shared;    /* FFN_NORM: the same tensor as ATTN_NORM */
        int w, b;       /* indices into weights; -1: none */
    } slot[SLOT_COUNT];
} bound;

typedef enum block_part { PART_EMBED, PART_LAYER, PART_HEAD } block_part;

/* Whether head h of a delta net has q and k of group h % rec_group; otherwise neighbouring heads share them.
 */
bool mixer_is_tiled(const model *m);
/* The parts of a recurrent layer's input projection, in the order of a tensor that has all. */
int mixer_parts(mixer_kind mixer, const slot_id **out);

/* Finds and checks every tensor of the part's slots. For PART_HEAD, `embed` is the embedding block (a tied
 * head). */
nib_status tensors_bind(model *m, block_part part, int layer, const block *embed, bound *out, nib_error *err);

/* Cuts a layer's bound weights and its shape to this rank's share (share.c); nothing happens if the model is
 * whole. NIB_E_USAGE names what cannot be cut, and why. */
nib_status share_cut(model *m, int layer, bound *b, nib_error *err);

void share_advice(bound *b); /* makes weight.n8 that of the share's inputs */

/* Reports the tensors that no weight uses: in a layer they are an error, elsewhere a log line. */
nib_status tensors_check_unused(const model *m, const logger *log, nib_error *err);

/* Closes the head that predicts later tokens, if there is one. */
void model_drop_ahead(model *m);

/* Turns the bound weights into ops, at most PROGRAM_MAX_OP; returns how many. */
int build_program(model *m, block_part part, int layer, const bound *b, op *ops);
/* Gives an op with a recurrent state its place in that of a sequence, after those placed before. */
void model_place_state(model *m, op *o);
/* The model's register of that name, a string literal. The first call declares it. */
reg model_declare_reg(model *m, const char *name);

/* Sets weight.n8 of a new block's weights from the file's advice (sites.h). Blocks come in a pass's order. */
void sites_take_advice(model *m, const op *ops, int n_op, weight *weights);
/* After the last block. NIB_E_MODEL: the advice is for another number of sites. */
nib_status sites_check_advice(const model *m, nib_error *err);

/* Sets the weight bytes that each op reads (cost.c). Repeated when a layout changes formats. blocks: all
 * blocks, for weights that another block owns. */
void cost_program(const block *blocks, const weight *weights, op *ops, int n);
/* Computes block.bytes from its weights; NIB_E_MODEL: they are too large. */
nib_status block_sum(block *b, nib_error *err);

/* Marks the ops that may be executed together (fuse.c). */
void fuse_program(op *ops, int n);

const char *slot_name(slot_id id);
const char *slot_gguf_name(slot_id id); /* slots.def's, with %d for the layer */

#endif
