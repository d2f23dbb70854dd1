/* rows.c - see rows.h. One thread reads and writes, all of them round. */
#include "quantize/rows.h"

#include "base/mem.h"
#include "base/num.h"
#include "quant/encode.h"

#include <math.h>
#include <stdatomic.h>
#include <string.h>

enum { ROOM = 1 << 18 /* values: some megabytes, in which threads have enough to do */, MAX_BYTES = 8 };

/* ---- room ---- */

static int64_t room_values(int64_t longest) {
    return NUM_MAX(longest, (int64_t)ROOM);
}

/* A value takes up to 8 bytes in a file, 4 as a float, up to 4 when it is written. */
uint64_t row_room_bytes(int64_t longest, int n_thread) {
    return (uint64_t)room_values(longest) * (MAX_BYTES + 2 * sizeof(float)) +
           (uint64_t)n_thread * (2 * sizeof(double) + (uint64_t)longest * sizeof(float));
}

nib_status row_room_open(row_room *r, int64_t longest, int n_thread, nib_error *err) {
    const size_t n = (size_t)room_values(longest);
    *r = (row_room){.n_value = (int64_t)n, .longest = longest, .n_byte = row_room_bytes(longest, n_thread)};
    r->raw = mem_array(n, MAX_BYTES);
    r->x = mem_array(n, sizeof *r->x);
    r->out = mem_array(n, sizeof(float));
    r->error = mem_array((size_t)n_thread, sizeof *r->error);
    r->all = mem_array((size_t)n_thread, sizeof *r->all);
    r->back = mem_array((size_t)n_thread * (size_t)longest, sizeof *r->back);
    if (r->raw && r->x && r->out && r->error && r->all && r->back)
        return NIB_OK;
    const uint64_t bytes = r->n_byte;
    row_room_close(r);
    return nib_fail_nomem(err, (size_t)bytes, "rows of a tensor");
}

void row_room_close(row_room *r) {
    mem_free(r->raw);
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

nib_status tensor_read(const container *c, const container_tensor *t, int64_t first, int64_t n, void *raw,
                       float *out, nib_error *err) {
    uint64_t row_bytes = 0;
    type_row_bytes(t->type, tensor_columns(t), &row_bytes);
    NIB_TRY(file_read_at(container_file(c, t->file), raw, t->offset + (uint64_t)first * row_bytes,
                         (uint64_t)n * row_bytes, err));
    type_get(t->type)->dequantize(raw, out, n * tensor_columns(t));
    return NIB_OK;
}

/* ---- rounding ---- */

typedef struct part {
    const row_task *task;
    row_room *room;
    int64_t first, n, k;
    uint64_t from_bytes, to_bytes; /* of a row */
    atomic_bool strange;           /* a value is not finite */
} part;

static void scale_row(const row_task *t, int64_t row, int64_t k, float *x) {
    for (int64_t i = 0; t->times && i < k; i++)
        x[i] *= t->times[i];
    for (int64_t i = 0; t->over && i < k; i++)
        x[i] /= t->over[row];
}

static void add_error(const part *p, int thread, const float *x, const float *y) {
    const float *columns = p->task->columns;
    double error = 0, all = 0;
    for (int64_t i = 0; i < p->k; i++) {
        const double w = columns ? (double)columns[i] : 1, d = (double)x[i] - (double)y[i];
        error += w * d * d;
        all += w * (double)x[i] * (double)x[i];
    }
    p->room->error[thread] += error;
    p->room->all[thread] += all;
}

static void round_part(void *arg, int thread, int n_thread) {
    part *p = arg;
    const row_task *t = p->task;
    int64_t begin, end;
    pool_split(p->n, 1, thread, n_thread, &begin, &end);
    for (int64_t r = begin; r < end; r++) {
        float *x = p->room->x + r * p->k;
        uint8_t *raw = p->room->raw + (uint64_t)r * p->from_bytes,
                *out = p->room->out + (uint64_t)r * p->to_bytes;
        type_get(t->tensor->type)->dequantize(raw, x, p->k);
        scale_row(t, p->first + r, p->k, x);
        float sum = 0;
        for (int64_t i = 0; i < p->k; i++)
            sum += x[i] * 0; /* NaN when one is not finite */
        if (sum != 0 || isnan(sum))
            atomic_store(&p->strange, true);
        float *back = p->room->back + thread * p->room->longest;
        if (t->round) {
            memcpy(back, x, (size_t)p->k * sizeof *x);
            t->round(t->by, thread, back, out);
        } else {
            encode_row(t->to, x, t->columns, p->k, out);
        }
        type_get(t->to)->dequantize(out, back, p->k);
        add_error(p, thread, x, back);
    }
}

static nib_status run_part(const row_task *t, part *p, nib_error *err) {
    NIB_TRY(cancel_check(t->cancel, err));
    NIB_TRY(file_read_at(container_file(t->c, t->tensor->file), p->room->raw,
                         t->tensor->offset + (uint64_t)p->first * p->from_bytes,
                         (uint64_t)p->n * p->from_bytes, err));
    pool_run(t->threads, round_part, p);
    if (atomic_load(&p->strange))
        return nib_fail(err, NIB_E_MODEL,
                        "tensor '%s': expected finite values, found others in rows %lld to %lld",
                        t->tensor->name, (long long)p->first, (long long)(p->first + p->n - 1));
    return t->put(t->user, p->room->out, (size_t)((uint64_t)p->n * p->to_bytes), err);
}

nib_status row_task_run(row_task *t, row_room *room, nib_error *err) {
    const int64_t rows = tensor_rows(t->tensor), k = tensor_columns(t->tensor);
    const int n_thread = pool_size(t->threads);
    part p = {.task = t, .room = room, .k = k};
    if (!type_row_bytes(t->tensor->type, k, &p.from_bytes) || !type_row_bytes(t->to, k, &p.to_bytes))
        return nib_fail(err, NIB_E_MODEL, "tensor '%s': rows of %lld values are no whole blocks",
                        t->tensor->name, (long long)k);
    memset(room->error, 0, (size_t)n_thread * sizeof *room->error);
    memset(room->all, 0, (size_t)n_thread * sizeof *room->all);
    const int64_t at_once = k ? NUM_MAX(room->n_value / k, (int64_t)1) : rows;
    for (p.first = 0; p.first < rows && k; p.first += p.n) {
        p.n = NUM_MIN(at_once, rows - p.first);
        NIB_TRY(run_part(t, &p, err));
    }
    for (int i = 0; i < n_thread; i++) {
        t->error += room->error[i];
        t->all += room->all[i];
    }
    return NIB_OK;
}
