/* job_write.c - see job.h: converts and writes one tensor after the other, by the job's method. */
#include "quantize/job.h"

#include "base/mem.h"
#include "base/num.h"
#include "numbers/encode.h"

#include <string.h>

#include <xxhash.h>

typedef struct putting {
    job *j;
    XXH3_state_t *sum;
} putting;

static nib_status put(void *user, const void *rows, size_t n_byte, nib_error *err) {
    putting *p = user;
    job *j = p->j;
    XXH3_64bits_update(p->sum, rows, n_byte);
    NIB_TRY(gguf_writer_data(j->writer, rows, n_byte, err));
    j->done += n_byte;
    if (j->options.progress && !j->options.progress(j->options.user, "quantizing", j->done, j->total))
        return nib_fail(err, NIB_E_CANCELLED, "cancelled");
    return NIB_OK;
}

/* Copies a tensor unchanged. */
static nib_status copy(putting *p, const gguf_tensor *t, nib_error *err) {
    job *j = p->j;
    const int64_t rows = tensor_rows(&t->as), k = tensor_columns(&t->as);
    const int64_t at_once = k ? NUM_MAX(j->scratch.n_value / k, (int64_t)1) : 1;
    uint64_t each = 0;
    type_row_bytes(t->from, k, &each);
    for (int64_t at = 0; at < rows && k; at += at_once) {
        const int64_t n = NUM_MIN(at_once, rows - at);
        NIB_TRY(cancel_check(&j->cancel, err));
        NIB_TRY(gguf_tensor_read(j->c, t, at, n, &j->scratch, j->scratch.raw, err));
        NIB_TRY(put(p, j->scratch.raw, (size_t)((uint64_t)n * each), err));
    }
    return NIB_OK;
}

/* ---- AWQ: factors of columns and rows ---- */

/* AWQ's factors of a tensor, for row_task. */
typedef struct scaling {
    float *imatrix, *times, *over; /* NULL: nothing */
} scaling;

static void scaling_clear(scaling *s) {
    mem_free(s->imatrix);
    mem_free(s->times);
    mem_free(s->over);
    memset(s, 0, sizeof *s);
}

static float *ones(int64_t n) {
    float *x = mem_array((size_t)n, sizeof *x);
    for (int64_t i = 0; x && i < n; i++)
        x[i] = 1;
    return x;
}

/* Divides the elements of a vector, or the rows of a matrix, that belong to weight `of` by `by` [rows of that
 * weight]. */
static nib_status divide(scaling *s, const gguf_tensor *t, const weight *of, const float *by,
                         nib_error *err) {
    const bool vector = t->as.n_dim < 2;
    const int64_t n = vector ? tensor_columns(&t->as) : tensor_rows(&t->as);
    float **to = vector ? &s->times : &s->over;
    if (!*to && !(*to = ones(n)))
        return nib_fail_nomem(err, (size_t)n * sizeof **to, "factors");
    for (int64_t i = 0, at = 0; i < t->n_piece; at += t->pieces[i++].n_row)
        for (int64_t k = 0, from = 0; k < of->n_piece; from += of->pieces[k++].n_row) {
            const weight_piece *a = &t->pieces[i], *b = &of->pieces[k];
            if (a->tensor != b->tensor)
                continue;
            const int64_t begin = NUM_MAX(a->first_row, b->first_row),
                          end = NUM_MIN(a->first_row + a->n_row, b->first_row + b->n_row);
            for (int64_t r = begin; r < end; r++) {
                const float f = by[from + r - b->first_row];
                (*to)[at + r - a->first_row] = vector ? 1 / f : f;
            }
        }
    return NIB_OK;
}

static nib_status multiply(const job *j, scaling *s, int w, const gguf_tensor *t, nib_error *err) {
    const float *factor = awq_times(&j->awq, w);
    const gram_site *in = gram_of(&j->inputs, w);
    const int64_t k = tensor_columns(&t->as);
    if (!in || s->times || s->imatrix)
        return NIB_OK;
    s->imatrix = ones(k);
    s->times = factor ? ones(k) : NULL;
    if (!s->imatrix || (factor && !s->times))
        return nib_fail_nomem(err, (size_t)k * sizeof *s->times, "factors");
    for (int64_t c = 0; c < k; c++) {
        const float f = factor ? factor[c] : 1;
        s->imatrix[c] = gram_mean_square(in, c) / (f * f);
        if (factor)
            s->times[c] = f;
    }
    return NIB_OK;
}

static nib_status find_scaling(const job *j, size_t i, scaling *s, nib_error *err) {
    const gguf_tensor *t = &j->tensors.all[i];
    const block *b = j->awq.m && j->uses[i].block == j->awq.block ? model_block(j->m, j->awq.block) : NULL;
    for (int w = 0; b && w < b->n_weight; w++) {
        const weight *of = &b->weights[w];
        if (!gguf_tensor_is_of(t, of))
            continue;
        const float *over = awq_over(&j->awq, w);
        if (over)
            NIB_TRY(divide(s, t, of, over, err));
        if (!of->vector)
            NIB_TRY(multiply(j, s, w, t, err));
    }
    return NIB_OK;
}

/* ---- GPTQ ---- */

/* The input that GPTQ needs for tensor i; NULL: the tensor is rounded to nearest. */
static const gram_site *gptq_input(const job *j, size_t i) {
    const tensor_use *use = &j->uses[i];
    if (j->method != METHOD_GPTQ || j->tensors.all[i].n_tile > 0 || use->block < 0 ||
        use->block != j->inputs.block || !encode_shape_of(j->types[i]))
        return NULL;
    return gram_of(&j->inputs, use->w);
}

/* Rounds a tensor by GPTQ. Matrices with the same input are written one after the other and share its factor.
 */
static nib_status round_by_gptq(job *j, row_task *task, const gram_site *in, nib_error *err) {
    if (j->gptq.inputs != in) {
        gptq_close(&j->gptq);
        NIB_TRY(gptq_open(&j->gptq, in, j->threads, j->inputs.ledger, err));
    }
    gptq_set_shape(&j->gptq, encode_shape_of(task->to));
    task->round = gptq_round;
    task->n_together = GPTQ_ROWS;
    task->by = &j->gptq;
    task->imatrix = j->gptq.imatrix;
    return row_task_run(task, &j->scratch, err);
}

/* ---- one tensor, one block ---- */

/* Finds where rows and columns come from, and puts the importance of the columns in their order. */
static nib_status find_order(const job *j, size_t i, scaling *s, permuted *from, nib_error *err) {
    const int64_t k = tensor_columns(&j->tensors.all[i].as), n = k * stats_experts(&j->tensors.all[i]);
    const float *imatrix = j->stats.of ? j->stats.of[i] : NULL;
    NIB_TRY(permute_tensor(&j->permute, &j->tensors.all[i], from, err));
    if (!from->cols || !imatrix || s->imatrix)
        return NIB_OK;
    s->imatrix = mem_array((size_t)n, sizeof *s->imatrix);
    if (!s->imatrix)
        return nib_fail_nomem(err, (size_t)n * sizeof *s->imatrix, "the importance of columns");
    for (int64_t c = 0; c < n; c++)
        s->imatrix[c] = imatrix[c - c % k + from->cols[c % k]];
    return NIB_OK;
}

/* The importance of columns that a rotation mixes: each new one has the mean of its group, as far as the old
 * ones are independent. */
static nib_status mix_importance(const job *j, size_t i, const rotation *by, scaling *s, nib_error *err) {
    const int64_t n = tensor_columns(&j->tensors.all[i].as) * stats_experts(&j->tensors.all[i]);
    const float *imatrix = j->stats.of ? j->stats.of[i] : NULL;
    if (!by || !imatrix)
        return NIB_OK;
    s->imatrix = mem_array((size_t)n, sizeof *s->imatrix);
    if (!s->imatrix)
        return nib_fail_nomem(err, (size_t)n * sizeof *s->imatrix, "the importance of columns");
    for (int64_t at = 0; at < n; at += by->n) {
        double sum = 0;
        for (int64_t c = 0; c < by->n; c++)
            sum += (double)imatrix[at + c];
        for (int64_t c = 0; c < by->n; c++)
            s->imatrix[at + c] = (float)(sum / (double)by->n);
    }
    return NIB_OK;
}

static nib_status round_tensor(putting *p, size_t i, const scaling *scale, const permuted *from,
                               const rotated_tensor *turned, nib_error *err) {
    job *j = p->j;
    const gram_site *in = gptq_input(j, i);
    const bool tiled = j->tensors.all[i].n_tile > 0; /* statistics of its columns have the model's order */
    row_task task = {.c = j->c,
                     .tensor = &j->tensors.all[i],
                     .to = j->types[i],
                     .imatrix = tiled            ? NULL
                                : scale->imatrix ? scale->imatrix
                                : j->stats.of    ? j->stats.of[i]
                                                 : NULL,
                     .imatrix_rows = tensor_rows(&j->tensors.all[i].as) / stats_experts(&j->tensors.all[i]),
                     .times = turned->times ? turned->times : scale->times,
                     .turn_cols = turned->cols,
                     .over = scale->over,
                     .rows = from->rows,
                     .cols = from->cols,
                     .threads = j->threads,
                     .cancel = &j->cancel,
                     .put = put,
                     .user = p};
    for (int at = 0; at < turned->n_rows; at++) {
        task.first = turned->rows[at].first;
        task.n = turned->rows[at].n;
        task.turn_rows = turned->rows[at].by;
        NIB_TRY(row_task_run(&task, &j->scratch, err));
    }
    if (!turned->n_rows)
        NIB_TRY(in ? round_by_gptq(j, &task, in, err) : row_task_run(&task, &j->scratch, err));
    j->error += task.error;
    j->all += task.all;
    return NIB_OK;
}

nib_status job_next(job *j, nib_error *err) {
    const size_t i = j->order[j->n_done];
    const gguf_tensor *t = &j->tensors.all[i];
    putting p = {j, XXH3_createState()};
    if (!p.sum)
        return nib_fail_nomem(err, 64, "a checksum");
    XXH3_64bits_reset(p.sum);
    scaling scale = {0};
    permuted from = {0};
    rotated_tensor turned = {0};
    nib_status status = find_scaling(j, i, &scale, err);
    if (status == NIB_OK && j->permute.m)
        status = find_order(j, i, &scale, &from, err);
    const bool turns = j->rotate.m && rotate_changes(&j->rotate, t);
    if (status == NIB_OK && turns)
        status = rotate_tensor(&j->rotate, t, &turned, err);
    if (status == NIB_OK && turns)
        status = mix_importance(j, i, turned.cols, &scale, err);
    if (status == NIB_OK && !turns && j->types[i] == t->from && t->add == 0 && !t->minus_exp &&
        t->n_tile == 0 && !t->row_times && !scale.times && !scale.over && !from.rows && !from.cols)
        status = copy(&p, t, err);
    else if (status == NIB_OK)
        status = round_tensor(&p, i, &scale, &from, &turned, err);
    scaling_clear(&scale);
    mem_free(from.rows);
    mem_free(from.cols);
    mem_free(turned.rows);
    const uint64_t sum = XXH3_64bits_digest(p.sum);
    XXH3_freeState(p.sum);
    if (status == NIB_OK)
        status = gguf_writer_sync(j->writer, err);
    if (status == NIB_OK)
        status = journal_add(&j->journal, sum, err);
    j->n_done += status == NIB_OK;
    return status;
}

nib_status job_block(job *j, int last, nib_error *err) {
    nib_status status = NIB_OK;
    if (j->n_done == j->n_tensor)
        return NIB_OK;
    const int next = j->uses[j->order[j->n_done]].block;
    if (next < 0 || next > last)
        return NIB_OK;
    if (j->method == METHOD_GPTQ)
        gram_complete(&j->inputs);
    if (j->method == METHOD_AWQ)
        status = awq_open(&j->awq, j->m, &j->inputs, &j->tensors, j->types, j->threads, err);
    while (status == NIB_OK && j->n_done < j->n_tensor) {
        const int at = j->uses[j->order[j->n_done]].block;
        if (at < 0 || at > last)
            break;
        status = job_next(j, err);
    }
    awq_close(&j->awq);
    gptq_close(&j->gptq);
    return status;
}
