/* layout.h - how a model is held under one plan: the format of every weight, the slices of every matrix, the
 * layers that are left out, the pages that the weights are cut into, their homes and devices if the plan
 * names them, and the resulting programs (an op for each second slice, a shortlist as the output head).
 *
 * A layout is an immutable value: made, read by any thread, and freed. Planning makes one for each format
 * that it tries. Unchanged blocks are the model's own; only the others take memory. The model outlives its
 * layouts. */
#ifndef NIB_MODEL_LAYOUT_H
#define NIB_MODEL_LAYOUT_H

#include "base/place.h"
#include "model/model.h"

typedef struct layout layout;

/* The choice for one block. */
typedef struct layout_part {
    char format[PACK_NAME];
    bool left_out; /* the layer has no weights and an empty program: the residual stream passes unchanged, and
                      no keys and values are stored */
} layout_part;

/* Where a plan has the weights of one block. */
typedef struct layout_place {
    /* Bytes of first and of second slices in each place; UINT64_MAX: all. The first pages are in the fastest
       place (a GPU, RAM, a disk). A page belongs to the place that has its last byte, and pages behind all
       bytes to the last one. Zeroed: all pages are in RAM. */
    uint64_t bytes[2][PLACES];
    bool on_gpu;  /* the GPU computes the block; false: the processor does */
    bool in_vram; /* with on_gpu: its matrices, also those of other blocks, are in VRAM in all passes; those
                     of at most bytes[][PLACE_GPU], if it has bytes elsewhere */
    bool apart;   /* with on_gpu: these are all but its experts, and some experts; for generated rows the
                     processor computes the others */
} layout_place;
bool layout_place_is_cut(const layout_place *p); /* it has bytes in VRAM and elsewhere */

/* Zeroed: the whole model in the file's formats.
 *
 * A format is for all matrices of a block, tables that are looked up by row included: "file" is what
 * pack_choose gives, exactly what the file has; another name of numbers/recipe.h ("u4g64", "u4g64w") rounds
 * the file's values to it; a stack ("u4g64+u4g64") gives each matrix a second slice, a weight and ops of its
 * own behind the block's others. Vectors stay f32. A matrix that another block owns (a tied head) changes
 * with its owner. */
typedef struct layout_choice {
    const char *format;         /* of every block; NULL: "file" */
    const layout_part *parts;   /* [n_block], instead of `format`; NULL: none */
    bool shortlist;             /* as layout_with_shortlist */
    const layout_place *places; /* [n_block]; NULL: homes and devices are decided later (engine/weights.c) */
} layout_choice;

/* NIB_E_USAGE names the block that cannot have its format, or that is no layer and cannot be left out. */
nib_status layout_make(const model *m, const layout_choice *choice, layout **out, nib_error *err);
void layout_free(layout *l); /* NULL is fine */

/* The next three functions make a copy of `from` with one change. `from` is unchanged; the caller frees both.
 * Errors are those of layout_make. */
/* on: the output head becomes OP_SHORTLIST, which omits logits that cannot be among the largest; its matrix
 * is then looked up by row, as an embedding is. Off: all logits are computed. Requires a layout_head. */
nib_status layout_with_shortlist(const layout *from, bool on, layout **out, nib_error *err);
/* Sets the packing of each matrix (first slices), which affects only the kernels. Called for matrices that
 * are packed in tiles. */
typedef pack_kind (*layout_packing_fn)(const void *user, int block, const weight *w);
nib_status layout_with_packings(const layout *from, layout_packing_fn packing, const void *user, layout **out,
                                nib_error *err);
/* Sets the imatrix of each matrix whose format uses one (u4g64w): [k], owned by the caller. Called for
 * these matrices; NULL: none. */
typedef const float *(*layout_imatrix_fn)(const void *user, int block, int w);
nib_status layout_with_imatrix(const layout *from, layout_imatrix_fn find, const void *user, layout **out,
                               nib_error *err);

const model *layout_model(const layout *l);
int layout_n_block(const layout *l); /* as model_n_block */
const block *layout_block(const layout *l, int i);
bool layout_is_left_out(const layout *l, int block);
bool layout_has_shortlist(const layout *l);
/* The op of the last block that makes logits of a packed matrix (OP_LINEAR or OP_SHORTLIST), with its matrix;
 * NULL: there is none, or its matrix is a stack's. */
const op *layout_head(const layout *l, const weight **matrix);
/* [n_block], as in layout_choice; NULL: none were given. */
const layout_place *layout_places(const layout *l);
/* The home of each page of layout_pages: a place; NULL: no places were given. */
const uint8_t *layout_homes(const layout *l);
uint64_t layout_home_bytes(const layout *l, int place); /* of its pages; 0: no places were given */
struct page_layout;
const struct page_layout *layout_pages(const layout *l); /* page_layout.h */
uint64_t layout_heap_bytes(const layout *l);             /* memory of its own, without shared blocks */

#endif
