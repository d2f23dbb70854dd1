/* row_op.c - see row_op.h. */
#include "kernels/row_op.h"

#include "base/num.h"
#include "kernels/route.h"

#include <math.h>

bool row_op_is(op_kind kind) {
    switch (kind) {
    case OP_COPY:
    case OP_SCALE_POS:
    case OP_ROUTE:
    case OP_MIX:
    case OP_LIKE:
    case OP_TIMES:
    case OP_SHARE:
    case OP_SOFTPLUS:
    case OP_SPARSIFY:
    case OP_CONNECT: return true;
    default: return false;
    }
}

/* The parts of a mix are few, and its columns many: a block of columns of all sums stays in the L1 cache. */
enum { MIX_COLUMNS = 64 };

static void mix(const op *o, const row_args *a) {
    const int64_t n_out = o->u.mix.n_out, n_in = o->u.mix.n_in, d = o->u.mix.d;
    float *out = a->out + o->u.mix.first * d;
    float sums[MIX_MAX][MIX_COLUMNS];
    for (int64_t c = 0; c < d; c += MIX_COLUMNS) {
        const int64_t n = NUM_MIN(MIX_COLUMNS, d - c);
        for (int64_t i = 0; i < n_out; i++) {
            for (int64_t k = 0; k < n; k++)
                sums[i][k] = o->adds ? out[i * d + c + k] : 0;
            for (int64_t j = 0; j < n_in; j++) {
                const int64_t at = o->u.mix.at + i * o->u.mix.step_out + j * o->u.mix.step_in;
                const float f = o->u.mix.plus + (a->in2 ? a->in2[at] : 0);
                const float *x = a->in + j * d + c;
                for (int64_t k = 0; k < n; k++)
                    sums[i][k] += f * x[k];
            }
        }
        for (int64_t i = 0; i < n_out; i++)
            for (int64_t k = 0; k < n; k++)
                out[i * d + c + k] = sums[i][k];
    }
}

static float mean_square(const float *x, int64_t n) {
    double sum = 0;
    for (int64_t i = 0; i < n; i++)
        sum += (double)x[i] * (double)x[i];
    return (float)(sum / (double)n);
}

static void like(const op *o, const row_args *a) {
    const int64_t d = o->n / o->u.num.every;
    const float want = sqrtf(mean_square(a->in2, d));
    for (int64_t g = 0; g < o->u.num.every; g++) {
        const float *x = a->in + g * d;
        const float by = want / sqrtf(fmaxf(mean_square(x, d), o->u.num.value));
        for (int64_t i = 0; i < d; i++)
            a->out[g * d + i] = x[i] * by;
    }
}

static void share(const op *o, const row_args *a) {
    const int64_t each = o->n / o->k;
    for (int64_t i = 0; i < o->n; i++)
        a->out[i] = a->in2[i] * a->in[i / each];
}

static void softplus(const op *o, const row_args *a) {
    for (int64_t i = 0; i < o->n; i++)
        a->out[i] = a->in[i] > 20 ? a->in[i] : log1pf(expf(a->in[i]));
}

static void sparsify(const op *o, const row_args *a) {
    double sum = 0, squares = 0;
    for (int64_t i = 0; i < o->n; i++)
        sum += (double)a->in[i];
    const double mean = sum / (double)o->n;
    for (int64_t i = 0; i < o->n; i++)
        squares += ((double)a->in[i] - mean) * ((double)a->in[i] - mean);
    const float least = (float)(mean + (double)o->u.num.value * sqrt(squares / (double)o->n));
    for (int64_t i = 0; i < o->n; i++) {
        const float above = a->in[i] - least;
        a->out[i] = above < 0 ? 0 : above;
    }
}

static float sigmoid(float x) {
    return 1 / (1 + expf(-x));
}

/* Divides each row of a square matrix by its sum, or each column. */
static void normalise(float *m, int64_t n, bool columns, float eps) {
    const int64_t step = columns ? n : 1, from = columns ? 1 : n;
    for (int64_t i = 0; i < n; i++) {
        float sum = eps;
        for (int64_t j = 0; j < n; j++)
            sum += m[i * from + j * step];
        for (int64_t j = 0; j < n; j++)
            m[i * from + j * step] /= sum;
    }
}

static void softmax(float *x, int64_t n, float plus) {
    float max = x[0], sum = 0;
    for (int64_t i = 1; i < n; i++)
        max = fmaxf(max, x[i]);
    for (int64_t i = 0; i < n; i++)
        sum += x[i] = expf(x[i] - max);
    for (int64_t i = 0; i < n; i++)
        x[i] = x[i] / sum + plus;
}

static void connect(const op *o, const row_args *a) {
    const int64_t n = o->u.num.offset;
    const float eps = o->u.num.value;
    float *all = a->out + 2 * n;
    for (int64_t i = 0; i < o->n; i++)
        a->out[i] = a->in[i] * a->w[i < n ? 0 : i < 2 * n ? 1 : 2] + a->b[i];
    for (int64_t i = 0; i < n; i++)
        a->out[i] = sigmoid(a->out[i]) + eps;
    if (o->n == n)
        return;
    for (int64_t i = n; i < 2 * n; i++)
        a->out[i] = 2 * sigmoid(a->out[i]);
    for (int64_t i = 0; i < n; i++)
        softmax(all + i * n, n, eps);
    normalise(all, n, true, eps);
    for (int64_t i = 1; i < o->u.num.every; i++) {
        normalise(all, n, false, eps);
        normalise(all, n, true, eps);
    }
}

void row_op(const kernel_table *t, const op *o, const row_args *a) {
    switch (o->kind) {
    case OP_COPY: op_copy_row(o, a->in, a->out); break;
    case OP_SCALE_POS: t->scale(a->in, op_position_scale(o, a->position), a->out, o->n); break;
    case OP_ROUTE:
        route_row(o, a->in, a->b, a->w2, a->w ? a->w + a->token * o->u.route.n_used : NULL, a->out);
        break;
    case OP_MIX: mix(o, a); break;
    case OP_LIKE: like(o, a); break;
    case OP_TIMES: t->gate(ACT_NONE, a->in, a->w, a->out, o->n); break;
    case OP_SHARE: share(o, a); break;
    case OP_SOFTPLUS: softplus(o, a); break;
    case OP_SPARSIFY: sparsify(o, a); break;
    case OP_CONNECT: connect(o, a); break;
    default: break;
    }
}

void rope_row(const kernel_table *t, const op *o, const float *cos_sin, float *x) {
    const int64_t half = o->u.rope.n_rot / 2;
    float back[ROPE_MAX];
    if (o->u.rope.back) {
        for (int64_t i = 0; i < half; i++) {
            back[i] = cos_sin[i];
            back[half + i] = -cos_sin[half + i];
        }
        cos_sin = back;
    }
    t->rope(o->u.rope.style, x + o->u.rope.at, o->u.rope.n_head, o->u.rope.d_head, o->u.rope.n_rot, cos_sin);
}
