/* rows.c - see rows.h. One thread reads and writes; all threads round. */
#include "quantize/rows.h"

#include "base/mem.h"
#include "base/num.h"
#include "formats/packed_matrix.h"
#include "numbers/encode.h"

#include <math.h>
#include <stdatomic.h>
#include <string.h>

enum {
    MIN_VALUES = 1 << 18 /* values of the scratch: some megabytes, enough work for all threads */,
    MAX_BYTES = 8,
    LANES = 8
};

/* ---- scratch ---- */

static int64_t scratch_values(const row_needs *n) {
    return NUM_MAX(NUM_MAX(n->longest, n->n_value), (int64_t)MIN_VALUES);
}

/* A value takes up to 8 bytes in a file, 4 as a float, and up to 4 in the output. */
uint64_t row_scratch_bytes(const row_needs *n) {
    return (uint64_t)scratch_values(n) * ((n->reorders ? 2 : 1) * MAX_BYTES + 2 * sizeof(float)) +
           (uint64_t)n->n_thread * (2 * sizeof(double) + (uint64_t)n->longest * sizeof(float));
}

nib_status row_scratch_open(row_scratch *r, const row_needs *needs, nib_error *err) {
    const size_t n = (size_t)scratch_values(needs), n_thread = (size_t)needs->n_thread;
    const bool reorders = needs->reorders;
    *r = (row_scratch){.n_value = (int64_t)n, .longest = needs->longest, .n_byte = row_scratch_bytes(needs)};
    r->raw = mem_array(n, MAX_BYTES);
    r->spare = reorders ? mem_array(n, MAX_BYTES) : NULL;
    r->x = mem_array(n, sizeof *r->x);
    r->out = mem_array(n, sizeof(float));
    r->error = mem_array(n_thread, sizeof *r->error);
    r->all = mem_array(n_thread, sizeof *r->all);
    r->back = mem_array(n_thread * (size_t)needs->longest, sizeof *r->back);
    if (r->raw && (r->spare || !reorders) && r->x && r->out && r->error && r->all && r->back)
        return NIB_OK;
    const uint64_t bytes = r->n_byte;
    row_scratch_close(r);
    return nib_fail_nomem(err, (size_t)bytes, "rows of a tensor");
}

void row_scratch_close(row_scratch *r) {
    mem_free(r->raw);
    mem_free(r->spare);
    mem_free(r->x);
    mem_free(r->out);
    mem_free(r->back);
    mem_free(r->error);
    mem_free(r->all);
    memset(r, 0, sizeof *r);
}

/* ---- tensors ---- */

int64_t tensor_columns(const container_tensor *t) {
    return t->n_dim ? t->shape[t->n_dim - 1] : 1;
}

int64_t tensor_rows(const container_tensor *t) {
    int64_t n = 1;
    for (int i = 0; i + 1 < t->n_dim; i++)
        n *= t->shape[i];
    return n;
}

nib_status tensor_read(const container *c, const container_tensor *t, int64_t row, void *raw, float *out,
                       nib_error *err) {
    uint64_t row_bytes = 0;
    if (t->packed)
        return packed_read(c, t, row, 1, TYPE_F32, out, err);
    type_row_bytes(t->type, tensor_columns(t), &row_bytes);
    NIB_TRY(
        file_read_at(container_file(c, t->file), raw, t->offset + (uint64_t)row * row_bytes, row_bytes, err));
    type_get(t->type)->dequantize(raw, out, tensor_columns(t));
    return NIB_OK;
}

/* ---- reading output tensors from the model's files ---- */

static uint64_t bytes_of(type_id type, int64_t n) {
    uint64_t bytes = 0;
    type_row_bytes(type, n, &bytes);
    return bytes;
}

/* The source of row r when rotary halves become adjacent pairs: row 2 i of a head is row i, row 2 i + 1 is
 * row half + i. */
static int64_t source_row(const gguf_tensor *t, int64_t r) {
    if (t->n_turn == 0)
        return r;
    const int64_t d = t->as.shape[0] / t->n_turn, in = r % d;
    return r - in + in / 2 + in % 2 * (d / 2);
}

/* The piece that contains row r, the row's index in it, and the number of its rows from r on. */
static const weight_piece *piece_at(const gguf_tensor *t, int64_t r, int64_t *row, int64_t *left) {
    for (int i = 0; i < t->n_piece; r -= t->pieces[i++].n_row)
        if (r < t->pieces[i].n_row) {
            *row = t->pieces[i].first_row + r;
            *left = t->pieces[i].n_row - r;
            return &t->pieces[i];
        }
    return NULL;
}

static nib_status no_row(const gguf_tensor *t, int64_t r, nib_error *err) {
    return nib_fail(err, NIB_E_MODEL, "tensor '%s': expected a piece with row %lld, found none", t->as.name,
                    (long long)r);
}

static nib_status read_rows(const container *c, const gguf_tensor *t, const weight_piece *p, int64_t row,
                            int64_t n, int64_t k, uint8_t *out, nib_error *err) {
    const uint64_t each = bytes_of(t->from, k);
    if (p->tensor->packed)
        return packed_read(c, p->tensor, row, n, t->from, out, err);
    return file_read_at(container_file(c, p->tensor->file), out, p->tensor->offset + (uint64_t)row * each,
                        (uint64_t)n * each, err);
}

/* Reads rows in the order of the pieces. */
static nib_status read_runs(const container *c, const gguf_tensor *t, int64_t first, int64_t n, int64_t k,
                            uint8_t *out, nib_error *err) {
    const uint64_t each = bytes_of(t->from, k);
    int64_t row = 0, left = 0;
    for (int64_t i = 0; i < n; i += left) {
        const weight_piece *p = piece_at(t, first + i, &row, &left);
        if (!p)
            return no_row(t, first + i, err);
        left = NUM_MIN(left, n - i);
        NIB_TRY(read_rows(c, t, p, row, left, k, out + (uint64_t)i * each, err));
    }
    return NIB_OK;
}

/* Reads rows that are reordered within their heads; the rows of each half are read together. */
static nib_status read_turned(const container *c, const gguf_tensor *t, int64_t first, int64_t n, int64_t k,
                              const row_scratch *scratch, uint8_t *out, nib_error *err) {
    const int64_t d = t->as.shape[0] / t->n_turn;
    const uint64_t each = bytes_of(t->from, k);
    for (int64_t at = first; at < first + n;) {
        const int64_t end = NUM_MIN(first + n, at - at % d + d); /* end of this head */
        for (int half = 0; half < 2; half++) {
            const int64_t begin = at + (at + half) % 2; /* the first row that comes from this half */
            const int64_t n_row = begin < end ? (end - begin + 1) / 2 : 0;
            if (n_row)
                NIB_TRY(read_runs(c, t, source_row(t, begin), n_row, k, scratch->spare, err));
            for (int64_t i = 0; i < n_row; i++)
                memcpy(out + (uint64_t)(begin + 2 * i - first) * each, scratch->spare + (uint64_t)i * each,
                       each);
        }
        at = end;
    }
    return NIB_OK;
}

/* How many of n columns from `first` on are of one tensor, and together at most `apart` times as wide: each
 * of the tensor's rows then takes one read of *span columns from *low on. Gates and values often alternate.
 */
static int64_t columns_together(const gguf_tensor *t, int64_t first, int64_t n, int64_t apart, int64_t *low,
                                int64_t *span) {
    const container_tensor *of = NULL;
    int64_t end = 0, i = 0;
    for (int64_t col = 0, left = 0; i < n; i += left) {
        const weight_piece *p = piece_at(t, first + i, &col, &left);
        if (!p || (of && p->tensor != of))
            break;
        left = NUM_MIN(left, n - i);
        const int64_t from = of ? NUM_MIN(*low, col) : col, to = NUM_MAX(end, col + left);
        if (of && to - from > apart * (i + left))
            break;
        of = p->tensor;
        *low = from;
        end = to;
    }
    *span = end - *low;
    return i;
}

/* Reads columns of a tensor that the file stores as [k, columns], through the spare scratch memory. A row's
 * columns are first read to `out`, which has k or more values for each. */
static nib_status read_columns(const container *c, const gguf_tensor *t, int64_t first, int64_t n, int64_t k,
                               const row_scratch *scratch, uint8_t *out, nib_error *err) {
    const uint64_t each = bytes_of(t->from, 1);
    int64_t col = 0, left = 0;
    for (int64_t i = 0, together, low = 0, span = 0; i < n; i += together) {
        const weight_piece *p = piece_at(t, first + i, &col, &left);
        together = columns_together(t, first + i, n - i, NUM_MIN(k, (int64_t)2), &low, &span);
        if (!p || !together)
            return no_row(t, first + i, err);
        for (int64_t r = 0; r < k; r++) {
            uint8_t *to = scratch->spare + (uint64_t)(r * n + i) * each;
            NIB_TRY(file_read_at(container_file(c, p->tensor->file), out,
                                 p->tensor->offset + (uint64_t)(r * p->tensor->shape[1] + low) * each,
                                 (uint64_t)span * each, err));
            for (int64_t j = 0; j < together; j += left) {
                piece_at(t, first + i + j, &col, &left);
                left = NUM_MIN(left, together - j);
                memcpy(to + (uint64_t)j * each, out + (uint64_t)(col - low) * each, (uint64_t)left * each);
            }
        }
    }
    for (int64_t i = 0; i < n; i++)
        for (int64_t r = 0; r < k; r++)
            memcpy(out + (uint64_t)(i * k + r) * each, scratch->spare + (uint64_t)(r * n + i) * each, each);
    return NIB_OK;
}

static nib_status read_vector(const container *c, const gguf_tensor *t, const row_scratch *scratch,
                              uint8_t *out, nib_error *err) {
    uint64_t at = 0;
    const uint64_t each = type_get(t->from)->block_elems == 1 ? bytes_of(t->from, 1) : 0;
    uint8_t *to = t->n_turn ? scratch->spare : out;
    if (t->data) {
        memcpy(out, t->data, t->as.bytes);
        return NIB_OK;
    }
    for (int i = 0; i < t->n_piece; i++) {
        const weight_piece *p = &t->pieces[i];
        const uint64_t n = bytes_of(t->from, p->n_row);
        NIB_TRY(file_read_at(container_file(c, p->tensor->file), to + at,
                             p->tensor->offset + (uint64_t)p->first_row * each, n, err));
        at += n;
    }
    for (int64_t i = 0; t->n_turn && i < t->as.shape[0]; i++)
        memcpy(out + (uint64_t)i * each, to + (uint64_t)source_row(t, i) * each, each);
    return NIB_OK;
}

nib_status gguf_tensor_read(const container *c, const gguf_tensor *t, int64_t first, int64_t n,
                            const row_scratch *scratch, uint8_t *out, nib_error *err) {
    const int64_t k = tensor_columns(&t->as);
    if (t->as.n_dim == 1)
        return read_vector(c, t, scratch, out, err);
    if (t->vector) /* several rows of elements */
        return read_runs(c, t, first * k, n * k, 1, out, err);
    if (t->transposed)
        return read_columns(c, t, first, n, k, scratch, out, err);
    return t->n_turn ? read_turned(c, t, first, n, k, scratch, out, err)
                     : read_runs(c, t, first, n, k, out, err);
}

/* ---- rounding ---- */

typedef struct part {
    const row_task *task;
    row_scratch *scratch;
    int64_t first, n, k;
    uint64_t from_bytes, to_bytes; /* of a row */
    atomic_bool strange;           /* a value is not finite */
} part;

/* Rows that one call rounds. */
static int64_t rows_together(const row_task *t) {
    return t->round ? t->n_together : 1;
}

/* Number of rows of k values that are converted at once: the same for each thread, if memory suffices. */
static int64_t rows_at_once(const row_task *t, const row_scratch *scratch, int64_t k) {
    const int64_t n = scratch->n_value / k, together = t->turn_rows ? t->turn_rows->n : rows_together(t);
    const int64_t unit = n < together * pool_size(t->threads) ? together : together * pool_size(t->threads);
    return NUM_MAX(n / unit, (int64_t)1) * unit;
}

static void scale_row(const row_task *t, int64_t row, int64_t k, float *x) {
    for (int64_t i = 0; t->times && i < k; i++)
        x[i] *= t->times[i];
    for (int64_t i = 0; t->over && i < k; i++)
        x[i] /= t->over[row];
}

/* The importance of row r of a part. */
static const float *importance_of(const part *p, int64_t r) {
    const row_task *t = p->task;
    return t->imatrix && t->imatrix_rows ? t->imatrix + (p->first + r) / t->imatrix_rows * p->k : t->imatrix;
}

/* Value i is in lane i % LANES, so that compilers vectorize the sums. */
static void add_error(const part *p, int thread, const float *imatrix, const float *x, const float *y) {
    double error[LANES] = {0}, all[LANES] = {0};
    for (int64_t i = 0; i < p->k; i += LANES)
        for (int64_t j = 0; j < NUM_MIN(p->k - i, (int64_t)LANES); j++) {
            const double w = imatrix ? (double)imatrix[i + j] : 1, d = (double)x[i + j] - (double)y[i + j];
            error[j] += w * d * d;
            all[j] += w * (double)x[i + j] * (double)x[i + j];
        }
    for (int j = 0; j < LANES; j++) {
        p->scratch->error[thread] += error[j];
        p->scratch->all[thread] += all[j];
    }
}

/* Puts the columns of a row in the task's order. spare: [k]. */
static void move_columns(const row_task *t, int64_t k, float *x, float *spare) {
    if (!t->cols)
        return;
    memcpy(spare, x, (size_t)k * sizeof *x);
    for (int64_t i = 0; i < k; i++)
        x[i] = spare[t->cols[i]];
}

static void read_values(type_id type, const void *raw, float *x, int64_t k) {
    if (type == TYPE_F16)
        pack_isa_best()->round->f16_values(raw, x, k);
    else
        type_get(type)->dequantize(raw, x, k);
}

/* Reads a row of k values, whose columns may move (gguf_tensor.n_tile). */
static void read_row(const gguf_tensor *t, const uint8_t *raw, int64_t k, float *x) {
    if (t->n_tile == 0) {
        read_values(t->from, raw, x, k);
        return;
    }
    const int64_t n_head = k / t->tile;
    uint64_t bytes = 0;
    type_row_bytes(t->from, t->tile, &bytes);
    for (int64_t h = 0; h < n_head; h++)
        read_values(t->from, raw + (uint64_t)(h % t->n_tile * (n_head / t->n_tile) + h / t->n_tile) * bytes,
                    x + h * t->tile, t->tile);
}

/* Converts row r of the part to floats. spare: [k]. */
static void prepare_row(part *p, int64_t r, float *spare) {
    const row_task *t = p->task;
    float *x = p->scratch->x + r * p->k;
    read_row(t->tensor, p->scratch->raw + (uint64_t)r * p->from_bytes, p->k, x);
    for (int64_t i = 0; t->tensor->minus_exp && i < p->k; i++)
        x[i] = -expf(x[i]);
    for (int64_t i = 0; t->tensor->add != 0 && i < p->k; i++)
        x[i] += t->tensor->add;
    for (int64_t i = 0; t->tensor->row_times && i < p->k; i++)
        x[i] *= t->tensor->row_times[t->rows ? t->rows[p->first + r] : p->first + r];
    move_columns(t, p->k, x, spare);
    scale_row(t, p->first + r, p->k, x);
    for (int64_t i = 0; t->turn_cols && i < p->k; i += t->turn_cols->n)
        rotation_apply(t->turn_cols, x + i, 1, spare);
    int strange = 0;
    for (int64_t i = 0; i < p->k; i++)
        strange |= !(fabsf(x[i]) < INFINITY);
    if (strange)
        atomic_store(&p->strange, true);
}

static void prepare_part(void *arg, int thread, int n_thread) {
    part *p = arg;
    int64_t begin, end;
    pool_split(p->n, 1, thread, n_thread, &begin, &end);
    for (int64_t r = begin; r < end; r++)
        prepare_row(p, r, p->scratch->back + thread * p->scratch->longest);
}

/* Multiplies groups of rows by the rotation, some columns at a time: these are gathered first. The memory of
 * the raw values, which are not needed any more, has 8 bytes for each value of the part: twice the columns of
 * this thread. */
static void turn_part(void *arg, int thread, int n_thread) {
    enum { STRIP = 16 };
    part *p = arg;
    const rotation *by = p->task->turn_rows;
    int64_t begin, end;
    pool_split(p->k, 1, thread, n_thread, &begin, &end);
    float *x = (float *)(void *)p->scratch->raw + 2 * begin * by->n;
    for (int64_t at = 0; at < p->n; at += by->n)
        for (int64_t c = begin, w; c < end; c += w) {
            float *from = p->scratch->x + at * p->k + c;
            w = NUM_MIN(end - c, (int64_t)STRIP);
            for (int64_t r = 0; r < by->n; r++)
                memcpy(x + r * w, from + r * p->k, (size_t)w * sizeof *x);
            rotation_apply(by, x, w, x + by->n * w);
            for (int64_t r = 0; r < by->n; r++)
                memcpy(from + r * p->k, x + r * w, (size_t)w * sizeof *x);
        }
}

static void round_part(void *arg, int thread, int n_thread) {
    part *p = arg;
    const row_task *t = p->task;
    const int64_t together = rows_together(t);
    float *back = p->scratch->back + thread * p->scratch->longest;
    int64_t begin, end;
    pool_split(p->n, together, thread, n_thread, &begin, &end);
    for (int64_t at = begin; at < end; at += together) {
        const int64_t n = NUM_MIN(together, end - at);
        float *x = p->scratch->x + at * p->k;
        uint8_t *out = p->scratch->out + (uint64_t)at * p->to_bytes;
        for (int64_t r = 0; r < n && !t->turn_rows; r++)
            prepare_row(p, at + r, back);
        if (t->round)
            t->round(t->by, thread, x, n, out);
        else
            encode_row(t->to, x, importance_of(p, at), p->k, out);
        for (int64_t r = 0; r < n; r++) {
            read_values(t->to, out + (uint64_t)r * p->to_bytes, back, p->k);
            add_error(p, thread, importance_of(p, at + r), x + r * p->k, back);
        }
    }
}

/* Reads the part's rows, one by one if their order changes. */
static nib_status read_part(const row_task *t, const part *p, nib_error *err) {
    uint8_t *raw = p->scratch->raw;
    if (!t->rows)
        return gguf_tensor_read(t->c, t->tensor, p->first, p->n, p->scratch, raw, err);
    for (int64_t i = 0; i < p->n; i++)
        NIB_TRY(gguf_tensor_read(t->c, t->tensor, t->rows[p->first + i], 1, p->scratch,
                                 raw + (uint64_t)i * p->from_bytes, err));
    return NIB_OK;
}

static nib_status run_part(const row_task *t, part *p, nib_error *err) {
    NIB_TRY(cancel_check(t->cancel, err));
    NIB_TRY(read_part(t, p, err));
    if (t->turn_rows) {
        pool_run(t->threads, prepare_part, p);
        pool_run(t->threads, turn_part, p);
    }
    pool_run(t->threads, round_part, p);
    if (atomic_load(&p->strange))
        return nib_fail(
            err, NIB_E_MODEL,
            "tensor '%s': expected finite values, found a NaN or an infinity in rows %lld to %lld",
            t->tensor->as.name, (long long)p->first, (long long)(p->first + p->n - 1));
    return t->put(t->user, p->scratch->out, (size_t)((uint64_t)p->n * p->to_bytes), err);
}

nib_status row_task_run(row_task *t, row_scratch *scratch, nib_error *err) {
    const int64_t rows = tensor_rows(&t->tensor->as), k = tensor_columns(&t->tensor->as);
    const int n_thread = pool_size(t->threads);
    part p = {.task = t, .scratch = scratch, .k = k};
    if (!type_row_bytes(t->tensor->from, k, &p.from_bytes) || !type_row_bytes(t->to, k, &p.to_bytes))
        return nib_fail(err, NIB_E_MODEL, "tensor '%s': expected rows of whole blocks, found %lld values",
                        t->tensor->as.name, (long long)k);
    memset(scratch->error, 0, (size_t)n_thread * sizeof *scratch->error);
    memset(scratch->all, 0, (size_t)n_thread * sizeof *scratch->all);
    const int64_t at_once = k ? rows_at_once(t, scratch, k) : rows, end = t->n ? t->first + t->n : rows;
    for (p.first = t->first; p.first < end && k; p.first += p.n) {
        p.n = NUM_MIN(at_once, end - p.first);
        NIB_TRY(run_part(t, &p, err));
    }
    for (int i = 0; i < n_thread; i++) {
        t->error += scratch->error[i];
        t->all += scratch->all[i];
    }
    return NIB_OK;
}
