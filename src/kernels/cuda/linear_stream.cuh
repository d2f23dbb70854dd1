/* linear_stream.cuh - the order in which a block of linear_stream.cu goes through its pairs of panels, and
 * the requests of weights and columns. */
#ifndef NIB_KERNELS_CUDA_LINEAR_STREAM_CUH
#define NIB_KERNELS_CUDA_LINEAR_STREAM_CUH

#include "kernels/cuda/cluster.cuh"
#include "kernels/cuda/linear_panels.cuh"

enum {
    STREAM_WARPS = 8,                         /* that multiply */
    STREAM_THREADS = 32 * STREAM_WARPS + 128, /* one of the other four warps makes requests */
    TOGETHER = 2,
    UNIT_BYTES = 9216, /* bytes of a unit of the ring: chunks of four panels, or 32 columns of a chunk */
    CHUNK_BYTES = UNIT_BYTES / 4,
    STEPS = 8,         /* barriers; more than the steps in flight */
    PASS_BYTES = 4096, /* a warp's sums */
    WEIGHT_LANES = 16  /* lanes of the requesting warp for weights; the others request columns */
};

template <int EIGHTS> struct stream_of {
    enum {
        HALVES = EIGHTS / 4,
        SHARES = STREAM_WARPS / HALVES,     /* pairs at once, times groups */
        MAX_PAIRS = EIGHTS == 8 ? 4 : 2,    /* at once */
        WEIGHT_UNITS = 2 * SHARES / 4,      /* of a step */
        RECORD_UNITS = HALVES,              /* of a group's columns */
        RECORD = RECORD_UNITS * UNIT_BYTES, /* bytes of the codes and scales of a chunk of all columns */
        UNITS = EIGHTS == 8 ? 20 : 24,      /* of the ring */
        PASSES = MAX_PAIRS * HALVES,
        PASS_AT = UNITS * UNIT_BYTES,
        BARS_AT = PASS_AT + PASSES * PASS_BYTES,
        BYTES = BARS_AT + (2 * STEPS + STREAM_WARPS) * 8
    };
};

/* The position of a warp or of the requests: pairs of the block, steps, units of the ring. */
struct stream_at {
    int first, pairs, groups; /* of what is done at once */
    int step, unit, units;    /* in all; of the ring */
    int left;                 /* steps of these pairs */
};
struct stream_chunk {
    int klass, chunk;
};
/* The number of pairs at once, if this many are left. */
template <int EIGHTS> __device__ __forceinline__ int pairs_of(int left) {
    int n = stream_of<EIGHTS>::MAX_PAIRS;
    while (n > left && n > 1)
        n /= 2;
    return n;
}
template <int EIGHTS>
__device__ __forceinline__ void at_begin(const linear_job &j, stream_at *at, int first, int per) {
    typedef stream_of<EIGHTS> is;
    const int n_class = min(j.n_chunk, (int)WARPS), more = j.n_chunk % WARPS, each = j.n_chunk / WARPS;
    at->first = first;
    at->pairs = pairs_of<EIGHTS>(per - first);
    at->groups = is::SHARES / at->pairs;
    at->units = is::WEIGHT_UNITS + at->groups * is::RECORD_UNITS;
    at->left = 0; /* steps of the first group, which has most */
    for (int c = 0; c < n_class; c += at->groups)
        at->left += each + (c < more);
}
template <int EIGHTS> __device__ __forceinline__ bool at_next(const linear_job &j, stream_at *at, int per) {
    at->step++;
    at->unit += at->units;
    at->unit -= at->unit >= stream_of<EIGHTS>::UNITS ? (int)stream_of<EIGHTS>::UNITS : 0;
    if (--at->left > 0)
        return false;
    at_begin<EIGHTS>(j, at, at->first + at->pairs, per);
    return true;
}
/* Moves to the next chunk. Returns whether a class ends with this one. */
__device__ __forceinline__ bool chunk_next(const linear_job &j, stream_chunk *c, int groups) {
    c->chunk += WARPS;
    if (c->chunk < j.n_chunk)
        return false;
    c->klass += groups;
    c->chunk = c->klass;
    return true;
}

/* A pair's panel: its matrix, and its number there; -1: none. */
__device__ __forceinline__ int stream_panel(const linear_job &j, int pair, int which, int *matrix) {
    *matrix = 0;
    if (j.gated) {
        *matrix = which;
        return pair < j.n_unit ? pair : -1;
    }
    const int panel = 2 * pair + which;
    *matrix = matrix_of(j, panel);
    return panel < j.n_unit ? panel - j.first[*matrix] : -1;
}

/* ---- requests ---- */

template <int EIGHTS> struct stream_feed {
    stream_at at;
    stream_chunk c;
    const uint8_t *panel; /* the lane's */
    int group, place;     /* group of its chunk; number of its weights in the step */
};
template <int EIGHTS>
__device__ __forceinline__ void feed_pairs(const linear_job &j, stream_feed<EIGHTS> *f, int base) {
    const int lane = threadIdx.x % 32;
    f->place = lane;
    f->group = lane < WEIGHT_LANES ? lane / 2 / f->at.pairs : lane - WEIGHT_LANES;
    f->c.klass = f->c.chunk = f->group < f->at.groups ? f->group : (int)WARPS;
    f->panel = nullptr;
    if (lane >= WEIGHT_LANES || f->group >= f->at.groups)
        return;
    int matrix;
    const int pair = base + f->at.first + lane / 2 % f->at.pairs;
    int panel = stream_panel(j, pair, lane % 2, &matrix);
    if (panel < 0) { /* the copy is not used */
        matrix = 0;
        panel = 0;
    }
    f->panel = j.w[matrix] + panel * j.panel_bytes;
}
template <int EIGHTS>
__device__ __forceinline__ void feed_next(const linear_job &j, stream_feed<EIGHTS> *f, int base, int per) {
    chunk_next(j, &f->c, f->at.groups);
    if (at_next<EIGHTS>(j, &f->at, per))
        feed_pairs<EIGHTS>(j, f, base);
}
/* Copy a step's weights and announce its bytes, and (put_columns) copy its columns. */
template <int EIGHTS>
__device__ __forceinline__ void put_weights(const linear_job &j, const stream_feed<EIGHTS> &f, uint8_t *ring,
                                            uint64_t *full) {
    typedef stream_of<EIGHTS> is;
    const bool there = f.c.klass < WARPS && f.c.chunk < j.n_chunk, mine = f.panel && there;
    const int weights = f.c.chunk == j.n_chunk - 1 ? j.last_bytes : j.chunk_bytes;
    const int bytes = mine ? weights : threadIdx.x % 32 >= WEIGHT_LANES && there ? (int)is::RECORD : 0;
    const int all = warp_sum(bytes);
    if (threadIdx.x % 32 == 0)
        bar_expect(full + f.at.step % STEPS, all);
    __syncwarp();
    const int unit = (f.at.unit + f.place / 4) % is::UNITS;
    if (mine)
        bulk_copy<true>(ring + unit * UNIT_BYTES + f.place % 4 * CHUNK_BYTES,
                        f.panel + (int64_t)f.c.chunk * j.chunk_bytes, weights, full + f.at.step % STEPS);
}
template <int EIGHTS>
__device__ __forceinline__ void put_columns(const linear_job &j, const stream_feed<EIGHTS> &f, uint8_t *ring,
                                            uint64_t *full) {
    typedef stream_of<EIGHTS> is;
    if (threadIdx.x % 32 < WEIGHT_LANES || f.c.klass >= WARPS || f.c.chunk >= j.n_chunk)
        return;
    const int unit = (f.at.unit + is::WEIGHT_UNITS + f.group * is::RECORD_UNITS) % is::UNITS;
    const int half = blockIdx.z * (is::RECORD / TOGETHER);
    bulk_copy_both(ring + unit * UNIT_BYTES + half,
                   (const uint8_t *)j.codes + (int64_t)f.c.chunk * is::RECORD + half, is::RECORD / TOGETHER,
                   full + f.at.step % STEPS);
}

/* The work of the ninth warp. The first weights are requested before the launch waits for its columns. */
template <int EIGHTS>
__device__ __forceinline__ void stream_requests(const linear_job &j, uint8_t *ring, uint64_t *full,
                                                uint64_t *empty, int base, int per) {
    typedef stream_of<EIGHTS> is;
    stream_feed<EIGHTS> f = {}, columns;
    int left_units = is::UNITS, tail = 0, ahead = 0;
    uint64_t sizes = 0; /* sizes of the steps in flight, in units, one byte each */
    at_begin<EIGHTS>(j, &f.at, 0, per);
    feed_pairs<EIGHTS>(j, &f, base);
    columns = f;
    for (; f.at.first < per && left_units >= f.at.units; ahead++) {
        put_weights<EIGHTS>(j, f, ring, full);
        left_units -= f.at.units;
        sizes |= (uint64_t)f.at.units << (8 * (f.at.step % STEPS));
        feed_next<EIGHTS>(j, &f, base, per);
    }
    __syncwarp();
    cluster_barrier();
    launch_wait();
    for (; ahead > 0; ahead--) {
        put_columns<EIGHTS>(j, columns, ring, full);
        feed_next<EIGHTS>(j, &columns, base, per);
    }
    while (f.at.first < per) {
        while (left_units < f.at.units) {
            bar_wait<false>(empty + tail % STEPS, tail / STEPS & 1);
            left_units += (int)(sizes >> (8 * (tail % STEPS)) & 255);
            tail++;
        }
        left_units -= f.at.units;
        sizes &= ~((uint64_t)255 << (8 * (f.at.step % STEPS)));
        sizes |= (uint64_t)f.at.units << (8 * (f.at.step % STEPS));
        put_weights<EIGHTS>(j, f, ring, full);
        put_columns<EIGHTS>(j, f, ring, full);
        feed_next<EIGHTS>(j, &f, base, per);
    }
    launch_next();
}

#endif
