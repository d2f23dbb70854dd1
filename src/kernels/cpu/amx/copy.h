/* copy.h - copies the activations of a part so that a tile of 16 rows is contiguous, and their scales so that
 * those of 16 rows are. */
#ifndef NIB_KERNELS_AMX_COPY_H
#define NIB_KERNELS_AMX_COPY_H

#include "kernels/cpu/amx/job.h"

#include <string.h>

/* Number of codes of a row that one tile instruction multiplies. */
static inline int tile_codes(const pack_format *f) {
    return NUM_MIN(f->group, TILE_K);
}
static inline int act_group_of(const pack_format *f) {
    return NUM_MAX(f->group, ACT8_GROUP);
}

/* Copies tiles [t0, t1) of K of the 16 rows from m0 on. Rows from m1 on become zeros. */
static void copy_rows(const tile_job *job, const pack_format *f, int64_t m0, int64_t m1, int64_t t0,
                      int64_t t1, int8_t *codes, float *scale, float *lift) {
    const int each = tile_codes(f), of_act = act_group_of(f);
    const int64_t k = (t1 - t0) * TILE_K, n = k / each, n_scale = group_end(of_act, k);
    const int64_t n_lift = f->asym ? group_end(f->group, k) : 0;
    for (int r = 0; r < TILE_ROWS; r++) {
        if (m0 + r >= m1) {
            for (int64_t g = 0; g < n; g++)
                memset(codes + (g * TILE_ROWS + r) * each, 0, (size_t)each);
            for (int64_t g = 0; g < n_scale; g++)
                scale[g * TILE_ROWS + r] = 0;
            for (int64_t g = 0; g < n_lift; g++)
                lift[g * TILE_ROWS + r] = 0;
            continue;
        }
        const char *x = (const char *)job->a->q.data + (m0 + r) * job->layout.bytes;
        const float *from_scale =
            (const float *)(const void *)(x + job->scale) + group_at(of_act, t0 * TILE_K);
        const float *from_lift =
            (const float *)(const void *)(x + job->lift) + group_at(f->group, t0 * TILE_K);
        x += t0 * TILE_K;
        if (each == 64)
            for (int64_t g = 0; g < n; g++)
                memcpy(codes + (g * TILE_ROWS + r) * 64, x + g * 64, 64);
        else if (each == 32)
            for (int64_t g = 0; g < n; g++)
                memcpy(codes + (g * TILE_ROWS + r) * 32, x + g * 32, 32);
        else
            for (int64_t g = 0; g < n; g++)
                memcpy(codes + (g * TILE_ROWS + r) * 16, x + g * 16, 16);
        for (int64_t g = 0; g < n_scale; g++)
            scale[g * TILE_ROWS + r] = from_scale[g];
        for (int64_t g = 0; g < n_lift; g++)
            lift[g * TILE_ROWS + r] = from_lift[g];
    }
}

static void copy_part(const tile_job *job, const part *at, scratch *s) {
    const pack_format *f = &job->a->w->format;
    const int64_t span = (at->c1 - at->c0) * TILE_CHUNK_K, t0 = at->c0 * TILE_CHUNK;
    const int64_t t1 = NUM_MIN(at->c1 * TILE_CHUNK, tile_count(job->a->w->k));
    for (int64_t m = at->m0, i = 0; m < at->m1; m += TILE_ROWS, i++)
        copy_rows(job, f, m, at->m1, t0, t1, s->codes + i * span * TILE_ROWS,
                  s->scale + i * span / ACT8_GROUP * TILE_ROWS, s->lift + i * span / ACT8_SUM * TILE_ROWS);
}

#endif
