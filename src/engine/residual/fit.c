/* fit.c - see fit.h. Rows are split into a fixed number of parts, whose sums are added in
 * order, so that the factors do not depend on the number of threads. */
#include "engine/residual/fit.h"

#include "base/mem.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

enum { PARTS = 16, ROUNDS = 4 };

/* Rows have factors if the standard deviation of the factors' logarithms exceeds this; noise gives 0.01 with
 * 3 bits. */
static const double SPREAD = 0.05;

/* ---- rows ---- */

static nib_status read_row(const container *c, const weight *w, int64_t i, uint8_t *raw, float *out,
                           nib_error *err) {
    for (int p = 0; p < w->n_piece; i -= w->pieces[p++].n_row) {
        const weight_piece *piece = &w->pieces[p];
        uint64_t bytes = 0;
        if (i >= piece->n_row)
            continue;
        if (!type_row_bytes(piece->tensor->type, w->k, &bytes))
            break;
        NIB_TRY(file_read_at(container_file(c, piece->tensor->file), raw,
                             piece->tensor->offset + (uint64_t)(piece->first_row + i) * bytes, bytes, err));
        type_get(piece->tensor->type)->dequantize(raw, out, w->k);
        return NIB_OK;
    }
    return nib_fail(err, NIB_E_MODEL, "weight '%s': expected a row %" PRId64 ", found none", w->name, i);
}

nib_status residual_read_rows(const residual_pair *p, int64_t i, uint8_t *raw, float *fine, float *coarse,
                              nib_error *err) {
    NIB_TRY(read_row(p->fine_files, p->fine, i, raw, fine, err));
    return read_row(p->coarse_files, p->coarse, i, raw, coarse, err);
}

int residual_norm_of(const block *b, int linear) {
    for (int i = linear - 1; i >= 0; i--)
        if (b->program.ops[i].out == b->program.ops[linear].in)
            return b->program.ops[i].kind == OP_NORM ? b->program.ops[i].w : -1;
    return -1;
}

nib_status residual_read_vector(const container *c, const weight *w, uint8_t *raw, float *out,
                                nib_error *err) {
    int64_t at = 0;
    for (int p = 0; p < w->n_piece; at += w->pieces[p++].n_row) {
        const weight_piece *piece = &w->pieces[p];
        uint64_t bytes = 0, before = 0;
        if (!type_row_bytes(piece->tensor->type, piece->n_row, &bytes) ||
            !type_row_bytes(piece->tensor->type, piece->first_row, &before) || at + piece->n_row > w->k)
            return nib_fail(err, NIB_E_MODEL,
                            "vector '%s': expected pieces of whole blocks that add up to its length",
                            w->name);
        NIB_TRY(file_read_at(container_file(c, piece->tensor->file), raw, piece->tensor->offset + before,
                             bytes, err));
        type_get(piece->tensor->type)->dequantize(raw, out + at, piece->n_row);
    }
    for (int64_t i = 0; i < at; i++)
        out[i] += w->add;
    return at == w->k
               ? NIB_OK
               : nib_fail(err, NIB_E_MODEL, "vector '%s': expected more elements in its tensors", w->name);
}

/* ---- memory ---- */

uint64_t residual_fit_bytes(int n_thread, int64_t max_k) {
    const uint64_t k = (uint64_t)max_k, n = (uint64_t)n_thread;
    return (1 + 2 * PARTS) * k * sizeof(double) + n * k * (2 * sizeof(float) + 8) +
           n * (sizeof(nib_status) + sizeof(nib_error));
}

nib_status residual_fit_open(residual_fit *f, pool *threads, int64_t max_k, nib_error *err) {
    const size_t k = (size_t)max_k, n = (size_t)pool_size(threads);
    *f = (residual_fit){.threads = threads, .max_k = max_k};
    f->column = mem_array(k, sizeof *f->column);
    f->sums = mem_array(2 * PARTS * k, sizeof *f->sums);
    f->rows = mem_array(2 * n * k, sizeof *f->rows);
    f->raw = mem_array(n * k, 8);
    f->status = mem_calloc(n, sizeof *f->status);
    f->errors = mem_calloc(n, sizeof *f->errors);
    if (f->column && f->sums && f->rows && f->raw && f->status && f->errors)
        return NIB_OK;
    residual_fit_close(f);
    return nib_fail_nomem(err, residual_fit_bytes((int)n, max_k), "the factors of residuals");
}

void residual_fit_close(residual_fit *f) {
    mem_free(f->column);
    mem_free(f->sums);
    mem_free(f->rows);
    mem_free(f->raw);
    mem_free(f->status);
    mem_free(f->errors);
    memset(f, 0, sizeof *f);
}

/* ---- sums ---- */

typedef struct passing {
    residual_fit *f;
    const residual_pair *p;
    double logs[PARTS], squares[PARTS]; /* sums of the rows' log factors, and of their squares */
} passing;

/* The row's factor, given the columns' factors. */
static double row_factor(const double *column, const float *fine, const float *coarse, int64_t k) {
    double qq = 0, qw = 0;
    for (int64_t c = 0; c < k; c++) {
        qq += (double)coarse[c] * (double)coarse[c];
        qw += (double)coarse[c] * (double)fine[c] * column[c];
    }
    return qq > 0 && qw > 0 ? qq / qw : 1;
}

static void add_row(passing *s, int part, const float *fine, const float *coarse, double *qq, double *qw) {
    const int64_t k = s->p->fine->k;
    const double found = row_factor(s->f->column, fine, coarse, k), t = s->f->by_row ? found : 1;
    for (int64_t c = 0; c < k; c++) {
        const double q = (double)coarse[c], w = (double)fine[c];
        qq[c] += q * q;
        qw[c] += q * w * t;
    }
    s->logs[part] += log(found);
    s->squares[part] += log(found) * log(found);
}

static void pass_share(void *arg, int thread, int n_thread) {
    passing *s = arg;
    residual_fit *f = s->f;
    const int64_t n = s->p->fine->n, k = s->p->fine->k;
    float *fine = f->rows + 2 * thread * f->max_k, *coarse = fine + f->max_k;
    for (int part = thread; part < PARTS && f->status[thread] == NIB_OK; part += n_thread) {
        double *qq = f->sums + (int64_t)2 * part * f->max_k, *qw = qq + f->max_k;
        int64_t begin, end;
        memset(qq, 0, (size_t)k * sizeof *qq);
        memset(qw, 0, (size_t)k * sizeof *qw);
        s->logs[part] = s->squares[part] = 0;
        pool_split(n, 1, part, PARTS, &begin, &end);
        for (int64_t i = begin; i < end && f->status[thread] == NIB_OK; i++) {
            f->status[thread] =
                residual_read_rows(s->p, i, f->raw + 8 * thread * f->max_k, fine, coarse, &f->errors[thread]);
            if (f->status[thread] == NIB_OK)
                add_row(s, part, fine, coarse, qq, qw);
        }
    }
}

static double total(const double of[PARTS]) {
    double sum = 0;
    for (int i = 0; i < PARTS; i++)
        sum += of[i];
    return sum;
}

/* One pass over the rows. */
static nib_status run_pass(passing *s, nib_error *err) {
    residual_fit *f = s->f;
    const int n_thread = pool_size(f->threads);
    for (int t = 0; t < n_thread; t++)
        f->status[t] = NIB_OK;
    pool_run(f->threads, pass_share, s);
    for (int t = 0; t < n_thread; t++)
        if (f->status[t] != NIB_OK) {
            if (err)
                *err = f->errors[t];
            return f->status[t];
        }
    return NIB_OK;
}

/* Sets the columns' factors from the sums of the pass. */
static void set_columns(residual_fit *f, int64_t k) {
    for (int64_t c = 0; c < k; c++) {
        double qq = 0, qw = 0;
        for (int part = 0; part < PARTS; part++) {
            qq += f->sums[(int64_t)2 * part * f->max_k + c];
            qw += f->sums[((int64_t)2 * part + 1) * f->max_k + c];
        }
        f->column[c] = qq > 0 && qw > 0 ? qq / qw : 1;
    }
}

static bool rows_differ(const passing *s) {
    const double n = (double)s->p->fine->n, mean = total(s->logs) / n;
    return total(s->squares) / n - mean * mean > SPREAD * SPREAD;
}

void residual_fit_none(residual_fit *f) {
    f->scaled = f->by_row = false;
}

nib_status residual_fit_find(residual_fit *f, const residual_pair *p, const float *norms, nib_error *err) {
    const int64_t k = p->fine->k;
    passing s = {.f = f, .p = p};
    f->scaled = true;
    f->by_row = false;
    for (int64_t c = 0; c < k; c++)
        f->column[c] = norms && norms[k + c] != 0 ? (double)norms[c] / (double)norms[k + c] : 1;
    NIB_TRY(run_pass(&s, err));
    if (norms) {
        f->by_row = rows_differ(&s);
        return NIB_OK;
    }
    for (int i = 0; i < ROUNDS; i++) {
        set_columns(f, k);
        NIB_TRY(run_pass(&s, err));
        f->by_row = f->by_row || rows_differ(&s);
        if (!f->by_row)
            break;
    }
    return NIB_OK;
}

void residual_fit_row(const residual_fit *f, float *fine, const float *coarse, int64_t k) {
    if (!f->scaled)
        return;
    const double t = f->by_row ? row_factor(f->column, fine, coarse, k) : 1;
    for (int64_t c = 0; c < k; c++)
        fine[c] = (float)(t * f->column[c] * (double)fine[c]);
}
