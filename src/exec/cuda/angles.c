/* angles.c - the rotary tables of a pass: cosines and sines of the positions of its rows, in host memory.
 *
 * They are computed in single precision, like the reference implementations. Frequencies that do not depend
 * on a sequence's length are computed once. While the GPU computes a pass with one row of each sequence, the
 * host computes the angles of the next positions of these rows for the next pass. */
#include "base/num.h"
#include "exec/cuda/cuda.h"

#include <math.h>
#include <string.h>

enum { MANY_ANGLES = 4096 /* so many angles of a segment are computed by all threads */ };

typedef struct angles_job {
    const float *inv_freq;
    float factor;
    int64_t half, position, n_row;
    float *out; /* [n_row, 2 half] */
} angles_job;

static void angles_part(void *arg, int thread, int n_thread) {
    const angles_job *j = arg;
    int64_t begin, end;
    pool_split(j->n_row, 1, thread, n_thread, &begin, &end);
    for (int64_t r = begin; r < end; r++) {
        float *out = j->out + r * 2 * j->half;
        for (int64_t i = 0; i < j->half; i++) {
            const float angle = (float)(j->position + r) * j->inv_freq[i];
            out[i] = cosf(angle) * j->factor;
            out[j->half + i] = sinf(angle) * j->factor;
        }
    }
}

static float *freqs_of(const cuda *c, int table) {
    return c->angles.inv_freq + table * c->angles.width;
}
static float *ahead_of(const cuda *c, int table, int64_t row) {
    return c->angles.ahead + (table * CUDA_MAX_ROWS + row) * c->angles.width;
}

void angles_open(cuda *c) {
    for (int t = 0; t < model_n_rope(cuda_model(c)); t++)
        if (!model_rope_varies(cuda_model(c), t))
            model_rope_freqs(cuda_model(c), t, 0, freqs_of(c, t), &c->angles.factor[t]);
    for (int64_t r = 0; r < CUDA_MAX_ROWS; r++)
        c->angles.position[r] = -1;
}

static void fill(const cuda *c, const segment *s, int table, float *out) {
    angles_job j = {.inv_freq = freqs_of(c, table),
                    .half = model_rope_dim(cuda_model(c), table) / 2,
                    .position = s->position,
                    .n_row = s->n_row,
                    .out = out};
    if (model_rope_varies(cuda_model(c), table))
        model_rope_freqs(cuda_model(c), table, s->length, freqs_of(c, table), &c->angles.factor[table]);
    j.factor = c->angles.factor[table];
    if (j.n_row * j.half >= MANY_ANGLES)
        pool_run(c->setup.threads, angles_part, &j);
    else
        angles_part(&j, 0, 1);
}

void angles_fill(const cuda *c, int table, float *out) {
    const int64_t width = model_rope_dim(cuda_model(c), table);
    const bool varies = model_rope_varies(cuda_model(c), table);
    int64_t row = 0;
    for (int i = 0; i < c->now.pass.n_segment; i++) {
        const segment *s = &c->now.pass.segments[i];
        if (!varies && s->n_row == 1 && row < CUDA_MAX_ROWS && c->angles.position[row] == s->position)
            memcpy(out + row * width, ahead_of(c, table, row), (size_t)width * sizeof *out);
        else
            fill(c, s, table, out + row * width);
        row += s->n_row;
    }
}

void angles_ahead(cuda *c) {
    const backend_pass *p = &c->now.pass;
    for (int i = 0; i < p->n_segment; i++)
        if (p->segments[i].n_row > 1)
            return;
    for (int i = 0; i < NUM_MIN(p->n_segment, CUDA_MAX_ROWS); i++) {
        const segment next = {.position = p->segments[i].position + 1, .n_row = 1};
        /* The angles are there: a pass calls this whenever the host waits. */
        if (c->angles.position[i] == next.position)
            continue;
        for (int t = 0; t < model_n_rope(cuda_model(c)); t++)
            if (!model_rope_varies(cuda_model(c), t))
                fill(c, &next, t, ahead_of(c, t, i));
        c->angles.position[i] = next.position;
    }
}
