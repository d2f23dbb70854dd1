/* rotate.c - see rotate.h. */
#include "quantize/rotate.h"

#include "base/mem.h"
#include "base/num.h"
#include "quantize/mix.h"
#include "quantize/rows.h"

#include <string.h>

/* ---- weights and tensors ---- */

static const weight *weight_of(const rotated *r, int b, int w) {
    return &model_block(r->m, b)->weights[w];
}

/* Whether rows (elements) of weight w of the tensor's block are in the tensor. A weight that another block
 * owns has a tensor only if it is that tensor's first one. */
static bool is_in(const rotated *r, const gguf_tensor *t, int w) {
    const weight *of = weight_of(r, t->block, w);
    if (of->shared_block >= 0 && w != t->w)
        return false;
    for (int i = 0; i < t->n_piece; i++)
        for (int k = 0; k < of->n_piece; k++)
            if (t->pieces[i].tensor == of->pieces[k].tensor)
                return true;
    return false;
}

/* The tensor's row (element) of each row of a weight, in `where`; returns the weight's rows. */
static int64_t find_rows(const gguf_tensor *t, const weight *of, int64_t *where) {
    int64_t from = 0;
    for (int k = 0; k < of->n_piece; from += of->pieces[k++].n_row) {
        int64_t at = 0;
        for (int64_t i = 0; where && i < of->pieces[k].n_row; i++)
            where[from + i] = -1;
        for (int i = 0; where && i < t->n_piece; at += t->pieces[i++].n_row) {
            const weight_piece *a = &t->pieces[i], *b = &of->pieces[k];
            const int64_t begin = NUM_MAX(a->first_row, b->first_row),
                          end = NUM_MIN(a->first_row + a->n_row, b->first_row + b->n_row);
            for (int64_t row = begin; a->tensor == b->tensor && row < end; row++)
                where[from + row - b->first_row] = at + row - a->first_row;
        }
    }
    return from;
}

static const rotation *rotation_of(const rotated *r, int axis) {
    return r->of[axis].n ? &r->of[axis] : NULL;
}

/* ---- opening ---- */

/* The axis of the residual stream: that of the embedding's columns. */
static int stream_axis(const rotated *r) {
    for (int b = 0; b < model_n_block(r->m); b++)
        for (int i = 0; i < model_block(r->m, b)->program.n_op; i++)
            if (model_block(r->m, b)->program.ops[i].kind == OP_EMBED)
                return axes_of(&r->axes, b, model_block(r->m, b)->program.ops[i].w).col;
    return -1;
}

static nib_status check_stream(const rotated *r, nib_error *err) {
    const int axis = stream_axis(r);
    if (axis >= 0 && r->axes.mix[axis])
        return NIB_OK;
    const axis_bar *bar = axis < 0 ? NULL : &r->axes.bar[axis];
    if (!bar || !bar->what)
        return nib_fail(err, NIB_E_USAGE,
                        "--rotate: the residual stream cannot be rotated: the order of its channels counts");
    return nib_fail(err, NIB_E_USAGE, "--rotate: the residual stream cannot be rotated: %s (%s%s%s)",
                    bar->what, model_block(r->m, bar->b)->name, bar->w < 0 ? "" : ", ",
                    bar->w < 0 ? "" : weight_of(r, bar->b, bar->w)->name);
}

/* Gives a rotation to each axis that the stream's is, and to the heads of values. */
static nib_status open_rotations(rotated *r, nib_error *err) {
    r->of = mem_calloc((size_t)r->axes.n + 1, sizeof *r->of);
    r->norm = mem_calloc((size_t)r->axes.first[model_n_block(r->m)] + 1, sizeof *r->norm);
    if (!r->of || !r->norm)
        return nib_fail_nomem(err, (size_t)r->axes.n * sizeof *r->of, "rotations");
    for (int i = 0; i < r->axes.n; i++)
        if (i == stream_axis(r) || (r->axes.mix[i] && r->axes.fixed[i])) {
            NIB_TRY(rotation_open(&r->of[i], r->axes.mix[i], err));
            r->n_axis++;
        }
    return NIB_OK;
}

/* The values of a norm, as the file that is written has them. */
static nib_status read_norm(const rotated *r, const gguf_tensor *t, float *out, nib_error *err) {
    const int64_t k = tensor_columns(&t->as);
    row_scratch scratch;
    const row_needs needs = {.longest = k, .reorders = true, .n_thread = 1};
    NIB_TRY(row_scratch_open(&scratch, &needs, err));
    const nib_status status = gguf_tensor_read(model_container(r->m), t, 0, 1, &scratch, scratch.raw, err);
    if (status == NIB_OK)
        type_get(t->from)->dequantize(scratch.raw, out, k);
    for (int64_t i = 0; i < k && status == NIB_OK; i++)
        out[i] += t->add;
    row_scratch_close(&scratch);
    return status;
}

/* Moves the weights of one norm: the tensor becomes ones. */
static nib_status move_norm(rotated *r, axis_norm at, gguf_tensors *tensors, nib_error *err) {
    float **norm = &r->norm[r->axes.first[at.b] + at.w];
    const weight *of = weight_of(r, at.b, at.w);
    for (size_t i = 0; i < tensors->n && !*norm; i++) {
        gguf_tensor *t = &tensors->all[i];
        if (t->block != at.b || !is_in(r, t, at.w) || t->as.n_dim != 1 || t->as.shape[0] != of->k ||
            t->minus_exp)
            continue;
        float *ones = arena_array(&tensors->mem, (size_t)of->k, sizeof *ones);
        *norm = mem_array((size_t)of->k, sizeof **norm);
        if (!ones || !*norm)
            return nib_fail_nomem(err, (size_t)of->k * sizeof *ones, "the weights of a norm");
        NIB_TRY(read_norm(r, t, *norm, err));
        for (int64_t k = 0; k < of->k; k++)
            ones[k] = 1;
        t->data = ones;
        t->n_piece = 0;
        t->n_turn = 0;
        t->add = 0;
        t->from = t->as.type = TYPE_F32;
        t->as.bytes = (uint64_t)of->k * sizeof *ones;
    }
    return *norm ? NIB_OK
                 : nib_fail(err, NIB_E_USAGE, "--rotate: the weights of a norm cannot be moved (%s, %s)",
                            model_block(r->m, at.b)->name, of->name);
}

/* A head that is the embedding's tensor reads a norm that the embedding does not, so it becomes a tensor. */
static nib_status untie(const rotated *r, int b, int w, gguf_tensors *tensors, nib_error *err) {
    const weight *of = weight_of(r, b, w);
    for (size_t i = 0; i < tensors->n; i++) {
        gguf_tensor t = tensors->all[i];
        if (t.block != of->shared_block || t.w != of->shared_index)
            continue;
        gguf_tensor *all = mem_array(tensors->n + 1, sizeof *all);
        if (!all)
            return nib_fail_nomem(err, tensors->n * sizeof *all, "a list of tensors");
        memcpy(all, tensors->all, tensors->n * sizeof *all);
        mem_free(tensors->all);
        tensors->all = all;
        t.as.name = "output.weight";
        t.as.file = -1;
        t.block = b;
        t.w = w;
        all[tensors->n++] = t;
        return NIB_OK;
    }
    return nib_fail(err, NIB_E_USAGE, "--rotate: %s of %s is shared, and has no tensor", of->name,
                    model_block(r->m, b)->name);
}

static nib_status move_norms(rotated *r, gguf_tensors *tensors, nib_error *err) {
    for (int b = 0; b < model_n_block(r->m); b++)
        for (int w = 0; w < model_block(r->m, b)->n_weight; w++) {
            const weight *of = weight_of(r, b, w);
            const axis_norm norm = r->axes.norm[r->axes.first[b] + w];
            if (norm.w < 0 || !rotation_of(r, axes_of(&r->axes, b, w).col))
                continue;
            if (of->shared_block >= 0 && !mix_makes_logits(model_block(r->m, b), w))
                return nib_fail(err, NIB_E_USAGE, "--rotate: %s of %s is shared, and its norm is not",
                                of->name, model_block(r->m, b)->name);
            if (of->shared_block >= 0)
                NIB_TRY(untie(r, b, w, tensors, err));
            NIB_TRY(move_norm(r, norm, tensors, err));
        }
    return NIB_OK;
}

nib_status rotate_open(rotated *r, const model *m, gguf_tensors *tensors, nib_error *err) {
    *r = (rotated){.m = m};
    NIB_TRY(axes_open(&r->axes, m, err));
    NIB_TRY(check_stream(r, err));
    NIB_TRY(open_rotations(r, err));
    return move_norms(r, tensors, err);
}

void rotate_close(rotated *r) {
    for (int i = 0; r->of && i < r->axes.n; i++)
        rotation_close(&r->of[i]);
    for (int i = 0; r->norm && i < r->axes.first[model_n_block(r->m)]; i++)
        mem_free(r->norm[i]);
    mem_free(r->of);
    mem_free(r->norm);
    axes_close(&r->axes);
    memset(r, 0, sizeof *r);
}

/* ---- tensors ---- */

static nib_status add_run(rotated_tensor *out, int64_t first, int64_t n, const rotation *by, nib_error *err) {
    rotated_rows *rows = mem_array((size_t)out->n_rows + 1, sizeof *rows);
    if (!rows)
        return nib_fail_nomem(err, sizeof *rows, "the rows of a tensor");
    if (out->n_rows)
        memcpy(rows, out->rows, (size_t)out->n_rows * sizeof *rows);
    mem_free(out->rows);
    out->rows = rows;
    rows[out->n_rows++] = (rotated_rows){first, n, by};
    return NIB_OK;
}

/* Adds the runs of a tensor's rows; by [n]: the rotation of each. */
static nib_status add_runs(rotated_tensor *out, const rotation *const *by, int64_t n, nib_error *err) {
    for (int64_t at = 0, end; at < n; at = end) {
        for (end = at + 1; end < n && by[end] == by[at]; end++)
            ;
        NIB_TRY(add_run(out, at, end - at, by[at], err));
    }
    return NIB_OK;
}

/* Marks the rows of one weight. False: the rows of a group are not one after the other. */
static bool mark_rows(const gguf_tensor *t, const weight *of, const rotation *by, int64_t *where,
                      const rotation **rows) {
    const int64_t n = find_rows(t, of, where);
    for (int64_t i = 0; i < n; i++) {
        if (where[i] < 0 || (i % by->n && where[i] != where[i - 1] + 1))
            return false;
        rows[where[i]] = by;
    }
    return n % by->n == 0;
}

static nib_status split(const gguf_tensor *t, nib_error *err) {
    return nib_fail(err, NIB_E_USAGE,
                    "--rotate: %s has rows of several weights, which cannot be rotated alone", t->as.name);
}

static nib_status find_runs(const rotated *r, const gguf_tensor *t, rotated_tensor *out, nib_error *err) {
    const int64_t n = tensor_rows(&t->as);
    const rotation **rows = mem_calloc((size_t)n + 1, sizeof *rows);
    int64_t *where = mem_array((size_t)n + 1, sizeof *where);
    nib_status status =
        rows && where ? NIB_OK : nib_fail_nomem(err, (size_t)n * sizeof *rows, "the rows of a tensor");
    for (int w = 0; status == NIB_OK && w < model_block(r->m, t->block)->n_weight; w++) {
        const weight *of = weight_of(r, t->block, w);
        const rotation *by = is_in(r, t, w) ? rotation_of(r, axes_of(&r->axes, t->block, w).row) : NULL;
        if (by && (find_rows(t, of, NULL) > n || !mark_rows(t, of, by, where, rows)))
            status = split(t, err);
    }
    if (status == NIB_OK)
        status = add_runs(out, rows, n, err);
    mem_free(where);
    mem_free(rows);
    return status;
}

nib_status rotate_tensor(const rotated *r, const gguf_tensor *t, rotated_tensor *out, nib_error *err) {
    int n_seen = 0;
    memset(out, 0, sizeof *out);
    for (int w = 0; t->block >= 0 && w < model_block(r->m, t->block)->n_weight; w++) {
        if (!is_in(r, t, w))
            continue;
        const weight *of = weight_of(r, t->block, w);
        const rotation *cols = rotation_of(r, axes_of(&r->axes, t->block, w).col);
        const axis_norm norm = r->axes.norm[r->axes.first[t->block] + w];
        const float *times = cols && norm.w >= 0 ? r->norm[r->axes.first[norm.b] + norm.w] : NULL;
        if (of->vector && cols && find_rows(t, of, NULL) != tensor_columns(&t->as))
            return split(t, err);
        if (n_seen++ && (cols != out->cols || times != out->times))
            return split(t, err);
        out->cols = cols;
        out->times = times;
    }
    return n_seen && t->as.n_dim > 1 && !t->vector ? find_runs(r, t, out, err)
                                                   : add_run(out, 0, tensor_rows(&t->as), NULL, err);
}

bool rotate_changes(const rotated *r, const gguf_tensor *t) {
    for (int w = 0; t->block >= 0 && w < model_block(r->m, t->block)->n_weight; w++) {
        const axis_pair axes = axes_of(&r->axes, t->block, w);
        if (is_in(r, t, w) && (rotation_of(r, axes.row) || rotation_of(r, axes.col)))
            return true;
    }
    return false;
}

int64_t rotate_together(const rotated *r, const gguf_tensors *tensors) {
    int64_t most = 0;
    for (size_t i = 0; i < tensors->n; i++) {
        const gguf_tensor *t = &tensors->all[i];
        for (int w = 0; t->block >= 0 && w < model_block(r->m, t->block)->n_weight; w++) {
            const rotation *by = is_in(r, t, w) ? rotation_of(r, axes_of(&r->axes, t->block, w).row) : NULL;
            if (by)
                most = NUM_MAX(most, by->n * tensor_columns(&t->as));
        }
    }
    return most;
}
