/* experts_wide.cu - products of many rows with packed matrices of experts: the kernel of wide_mma.cu. The
 * rows of the list's pairs are written as images (wide.cuh), so those of an expert are neighbours. */
#include "kernels/cuda/experts.cuh"
#include "kernels/cuda/wide.cuh"

int experts_wide_launch(const cuda_experts *a, const expert_job &x, cuda_stream s) {
    wide_job j;
    cuda_linear one = {};
    const cuda_expert_list l = cuda_expert_wide_of(a->n_row * a->n_used, a->n_expert);
    one.n_w = a->n_w;
    one.n_row = 1;
    one.gated = a->gated;
    one.act = a->act;
    one.scratch = a->scratch;
    for (int i = 0; i < a->n_w; i++) {
        one.w[i] = a->w[i];
        one.w[i].n = a->n;
        one.y[i] = x.y[i];
        one.ldy[i] = x.ldy[i];
        one.bias[i] = x.bias[i];
    }
    int e = wide_job_make(&one, &j);
    if (e || (a->weighted && !a->sum && a->bias[0]))
        return CUDA_UNSUPPORTED;
    j.of.tiles = x.tiles;
    j.of.n = x.n_tile;
    j.of.pairs = x.pairs;
    j.of.max_tile = (int)l.max_tile;
    j.of.max_pair = (int)l.max_pair;
    j.of.n_used = (int)a->n_used;
    j.of.expert_bytes = expert_bytes(&a->w[0], a->n_expert);
    j.of.part = a->sum ? a->n : 0;
    j.of.chosen = a->weighted && !a->sum ? a->chosen : nullptr;
    j.of.ldc = a->ldc;
    j.adds = a->adds && !a->sum;
    j.factor = (const float *)((uint8_t *)a->scratch + l.max_pair * j.n_tile * (WIDE_IMAGE / WIDE_ROWS));
    e = images_pairs_launch(a, j, s);
    return e ? e : wide_mma_launch(&j, &a->w[0].format, s);
}
