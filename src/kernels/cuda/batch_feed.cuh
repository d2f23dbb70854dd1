/* batch_feed.cuh - a block's part of a product of batch_mma.cu, and the warps that copy its operands. */
#ifndef NIB_KERNELS_CUDA_BATCH_FEED_CUH
#define NIB_KERNELS_CUDA_BATCH_FEED_CUH

#include "kernels/cuda/cluster.cuh"
#include "kernels/cuda/wide_outputs.cuh"

enum {
    BATCH_PANELS = 16,
    BATCH_WARPS = BATCH_PANELS,
    BATCH_FEEDERS = 4 /* warps that fill stages: the first copies images, the others panels */,
    BATCH_THREADS = 32 * (BATCH_WARPS + BATCH_FEEDERS),
    BATCH_OUTPUTS = BATCH_PANELS * PACK_PANEL,
    BATCH_LINE =
        BATCH_OUTPUTS + 4 /* floats of a row of sums; the lanes of a warp write to different banks */,
    BATCH_STAGES = 8,
    BATCH_OWN = 3072 /* bytes for barriers and factors, and for a block of the kernel that makes images */,
    MAX_SPLIT = 8 /* blocks of a cluster */
};

struct batch_job {
    wide_job of;
    int n_stage, x_bytes, each_bytes; /* number of stages; bytes of a stage's images, and of a whole stage */
    int image_bytes;                  /* bytes of an image, which has only existing rows */
    int split;                        /* blocks of a cluster */
};

/* A block's part of the work. */
struct batch_place {
    place at;
    int rank, first, end; /* rank of the block in the cluster; its chunks [first, end) */
};
__device__ __forceinline__ batch_place batch_place_of(const batch_job &j) {
    const int rank = (int)blockIdx.z, n = j.of.n_chunk;
    return {{0, (int)blockIdx.x * (j.of.gated ? BATCH_PANELS / 2 : BATCH_PANELS)},
            rank,
            n * rank / j.split,
            n * (rank + 1) / j.split};
}

struct batch_ring {
    uint8_t *data; /* stages: images of a chunk's tiles, then chunks of the panels */
    uint64_t *full, *empty;
    float *factors; /* [rows] */
};

/* The copies of a feeder warp. Lane i of the feeder for images copies tile i. Another feeder f has panels f -
 * 1, f + 2, ... */
struct batch_feed {
    const uint8_t *from; /* the lane's next address */
    int n_there;         /* number of the warp's panels */
    int panel;           /* the lane's panel, or a number beyond the last */
};
__device__ __forceinline__ int feeder(void) {
    return (int)threadIdx.x / 32 - BATCH_WARPS;
}
__device__ __forceinline__ int tiles_of(const batch_job &j, int chunk) {
    return chunk == j.of.n_chunk - 1 ? j.of.last_tiles : TILE_CHUNK;
}
__device__ __forceinline__ batch_feed panels_feed_of(const batch_job &j, const batch_place &in) {
    enum { STEP = BATCH_FEEDERS - 1 };
    const int first = feeder() - 1;
    batch_feed f = {nullptr, 0, first + STEP * ((int)threadIdx.x % 32)};
    for (int p = first; p < BATCH_PANELS; p += STEP)
        f.n_there += wide_is_there<BATCH_PANELS>(j.of, in.at, p);
    if (f.panel < BATCH_PANELS && wide_is_there<BATCH_PANELS>(j.of, in.at, f.panel)) {
        int matrix;
        const int p = wide_panel<BATCH_PANELS>(j.of, in.at, f.panel, &matrix);
        f.from = j.of.w[matrix] + p * j.of.panel_bytes + (int64_t)in.first * j.of.chunk_bytes;
    }
    return f;
}
/* Announces the bytes that the warp adds to a stage, and starts their copies. */
__device__ __forceinline__ void feed_panels(const batch_job &j, const batch_ring &r, batch_feed *f, int slot,
                                            int chunk) {
    const int bytes = chunk == j.of.n_chunk - 1 ? j.of.last_bytes : j.of.chunk_bytes;
    if (threadIdx.x % 32 == 0)
        bar_expect(r.full + slot, f->n_there * bytes);
    __syncwarp();
    if (f->from) {
        bulk_copy<true>(r.data + slot * j.each_bytes + j.x_bytes + f->panel * j.of.stage_bytes, f->from,
                        bytes, r.full + slot);
        f->from += j.of.chunk_bytes;
    }
}
template <int N>
__device__ __forceinline__ void feed_images(const batch_job &j, const batch_ring &r, int slot, int chunk) {
    const int tile = threadIdx.x % 32, n = tiles_of(j, chunk);
    if (tile == 0)
        bar_expect(r.full + slot, n * j.image_bytes);
    __syncwarp();
    if (tile < n)
        bulk_copy<false>(r.data + slot * j.each_bytes + tile * (N * 128),
                         j.of.x + ((int64_t)chunk * TILE_CHUNK + tile) * WIDE_IMAGE, j.image_bytes,
                         r.full + slot);
}
template <int N>
__device__ __forceinline__ void feed_all(const batch_job &j, const batch_place &in, const batch_ring &r) {
    const int ahead = min(j.n_stage, in.end - in.first);
    turn put = {0, 0};
    if (feeder() == 0) {
        launch_wait();
        for (int i = 0; i < ahead; i++)
            feed_images<N>(j, r, i, in.first + i);
        for (int i = threadIdx.x % 32; i < j.of.n_row; i += 32)
            r.factors[i] = j.of.factor[i];
        for (int chunk = in.first + ahead; chunk < in.end; chunk++) {
            bar_wait<false>(r.empty + put.slot, put.phase);
            feed_images<N>(j, r, put.slot, chunk);
            put.next(j.n_stage);
        }
        return;
    }
    batch_feed f = panels_feed_of(j, in);
    for (int i = 0; i < ahead; i++)
        feed_panels(j, r, &f, i, in.first + i);
    for (int chunk = in.first + ahead; chunk < in.end; chunk++) {
        bar_wait<false>(r.empty + put.slot, put.phase);
        feed_panels(j, r, &f, put.slot, chunk);
        put.next(j.n_stage);
    }
}

#endif
