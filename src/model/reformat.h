/* reformat.h - the precision of a model's blocks, decided after its headers were read and before its weights
 * are: which format a block's matrices are brought to while they are loaded, and which layers are left out.
 *
 * Both change the model, so they belong between model_open and everything that looks at blocks (pager_open,
 * routes_open, workspace_open). Weights, block bytes and the costs of ops are afterwards as if the model had
 * been opened that way. */
#ifndef NIB_MODEL_REFORMAT_H
#define NIB_MODEL_REFORMAT_H

#include "model/model.h"

/* All matrices of a block, tables that are looked up by row included, in one format: "file" is what
 * pack_choose gives, exactly what the file has; another name of quant/recipe.h ("u4g64", "u4g64w") rounds the
 * file's values to it; a stack ("u4g64+u4g64") gives each matrix a second slice, a weight and ops of its own
 * behind the others (so what counts weights or ops counts them afterwards). Vectors stay f32. A matrix that
 * another block owns (a tied head) belongs to its owner: it changes with that one, not here. NIB_E_USAGE
 * names the block, and nothing is changed. */
nib_status model_reformat(model *m, int block, const char *format, nib_error *err);

/* The flavour in which the block's own matrix `w` is packed: as many bytes, other kernels. Nothing changes
 * where it has floats (PACK_ROWS), is a vector or belongs to another block. */
void model_set_flavour(model *m, int block, int w, pack_flavour flavour);

/* A layer without weights and with an empty program: the residual stream passes by. Its keys and values have
 * no room in a cache. NIB_E_USAGE: the block is not a layer. */
nib_status model_leave_out(model *m, int block, nib_error *err);
bool model_is_left_out(const model *m, int block);

/* The op of the last block that makes logits of a packed matrix (OP_LINEAR or OP_SHORTLIST), with its matrix;
 * NULL: there is none, or its matrix is a stack's. */
const op *model_head(const model *m, const weight **matrix);
/* Logits that cannot be among the largest are not computed (OP_SHORTLIST), or all are again. The matrix is
 * then looked up by row, as an embedding is. Only where model_head finds one. */
void model_set_shortlist(model *m, bool on);

/* For a matrix whose format takes weights of its columns (w): k of them, which the caller keeps. */
void model_set_columns(model *m, int block, int w, const float *columns);

/* The matrix has another format than what the file has, packed. */
bool weight_is_rounded(const weight *w);

#endif
