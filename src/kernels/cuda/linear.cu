/* linear.cu - products with integer codes, up to 16 columns at a time: the arguments of the kernels, and the
 * choice of the kernel. See linear.cuh. */
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/launches.h"
#include "kernels/cuda/linear.cuh"
#include "kernels/cuda/tables.cuh"

#include <algorithm>

/* Whether the launch leaves codes of its outputs. Then a unit of work is two panels. */
static bool job_leaves(const cuda_linear *a, linear_job *j) {
    if ((a->n_w > 1 && !a->gated) || a->w[0].n % 32 || a->two)
        return false;
    if (a->n_row > 1 && (a->n_row > MAX_LEFT_ROWS || a->w[0].n % TILE_CHUNK_K || a->leaves.group != 32))
        return false;
    if (a->n_row > 1)
        j->leaves_rows = codes_rows_of(a->leaves.data, a->leaves.norm, a->w[0].n, a->n_row);
    else
        j->leaves = codes_of(a->leaves, a->w[0].n);
    j->leaves_group = (int)a->leaves.group;
    j->paired = 1;
    j->n_unit /= 2;
    return true;
}

int linear_job_make(const cuda_linear *a, linear_job *j) {
    const view *w = &a->w[0];
    const pack_format *f = &w->format;
    *j = linear_job{};
    if (!matrices_are(a) || a->acts || a->centred || f->layout != PACK_TILE || f->packing != PACK_PARTS ||
        w->k < 1 || w->k > MAX_PACK_ROW)
        return CUDA_UNSUPPORTED;
    j->n_col = (int)(a->n_row * (a->two ? 2 : 1));
    j->gated = a->gated;
    j->n_unit = matrices_set(a, PACK_PANEL, j);
    if (a->leaves.data && !job_leaves(a, j))
        return CUDA_UNSUPPORTED;
    j->act = a->act;
    j->adds = a->adds;
    j->k = (int)w->k;
    tiles_set(w, j);
    j->k_pad = j->n_chunk * TILE_CHUNK_K;
    j->table = table_shared(f);
    j->group = f->group == PACK_GROUP_ROW ? 0 : f->group;
    j->act_group = f->scale == PACK_SCALE_TWO ? 0 : j->group == 16 ? ACT8_GROUP : j->group;
    j->subgroup = j->group == 16 ? 16 : 32;
    for (int g = j->group; g > j->subgroup; g /= 2)
        j->group_shift++;
    if (f->scale == PACK_SCALE_ZERO || !one_has(f))
        return CUDA_UNSUPPORTED;
    j->top = a->act_bits == 4 ? 7 : 127;
    j->x = a->x;
    j->norm = a->norm;
    j->eps = a->eps;
    j->two = a->two;
    j->sum = a->sum;
    j->max_panels = job_panels(*j, job_blocks(*j));
    int n_strategy;
    j->by_rule = !a->by || a->by == device_strategies(&n_strategy);
    if (a->n_row > 1 && a->codes && !a->two && j->top == 127)
        j->coded = (const uint8_t *)a->codes;
    const bool takes = j->n_col == 1 && j->subgroup == 32 && j->top == 127 && a->codes;
    if (takes && (j->act_group == 32 || (j->act_group > 32 && a->codes_whole)))
        j->coded = (const uint8_t *)a->codes;
    else if (takes && j->act_group > 32 && f->bits < 8) /* with 8 bits each block quantizes the row as fast */
        j->left = codes_of({(void *)a->codes, nullptr, j->act_group}, j->k);
    return 0;
}

/* Shared memory and the rings' depth; `others` bytes stand behind the rings.
 *
 * A launch's block and the next launch's should be together on a multiprocessor, but never two of one launch,
 * which would leave another multiprocessor without work. So a launch of many panels takes 11/20 of the memory
 * and one of few, which follows it in a model, 9/20: beside a block of the first fits one of the second, and
 * no other. No warp has more stages than chunks to read. */
size_t linear_shared_bytes(linear_job *j, size_t others, int blocks) {
    enum { OWN = 11776 /* bytes of a block that the driver and static arrays take */, RESERVED = 1024 };
    const int panels = job_panels(*j, blocks);
    const int64_t share = (device_shared_bytes() + RESERVED) * (int64_t)(panels > 2 ? 11 : 9) / 20;
    j->stage_bytes = stage_bytes_of(j->chunk_bytes - (j->pieces ? CHUNK_PIECE : 0));
    j->depth = stages_of(*j, share - OWN - (int64_t)others, 1, warp_chunks(*j, panels) * (j->pieces ? 2 : 1));
    return (size_t)(ALL_WARPS * j->depth * j->stage_bytes) + others;
}

/* Maximum columns of a launch: of linear_many, with rows in shared memory, and on clusters. */
enum { MAX_COLUMNS = 16, MAX_KEPT_COLUMNS = 32, MAX_CLUSTER_COLUMNS = 64 };

static int n_eight(int n_col) {
    return n_col <= 8 ? 1 : n_col <= 16 ? 2 : n_col <= 32 ? 4 : 8;
}

size_t codes_bytes(int64_t k) {
    return (size_t)((k + TILE_CHUNK_K - 1) / TILE_CHUNK_K * (TILE_CHUNK_K / 32)) * LEFT_BYTES;
}

size_t linear_scratch(int64_t n_row, int64_t k, bool two) {
    const int64_t k_pad = (k + TILE_CHUNK_K - 1) / TILE_CHUNK_K * TILE_CHUNK_K, n_col = n_row * (two ? 2 : 1);
    const int eights = n_eight((int)(n_col < MAX_CLUSTER_COLUMNS ? n_col : MAX_CLUSTER_COLUMNS));
    size_t most = many_scratch_bytes(k_pad, two && eights < 4 ? 4 : eights);
    int n;
    const cuda_strategy *const all = device_strategies(&n);
    for (int i = 0; i < n; i++)
        if (all[i].row.scratch_of)
            most = std::max(most, all[i].row.scratch_of(n_col, k));
    return std::max(most, float_scratch(n_row, k));
}

int linear_run(linear_kernel kernel, linear_job *j, size_t others, cuda_stream s) {
    const int blocks = job_blocks(*j);
    const size_t shared_bytes = linear_shared_bytes(j, others, blocks);
    const int e = prepare(kernel, shared_bytes);
    return e ? e : launch(kernel, dim3(blocks), dim3(THREADS), shared_bytes, s, *j);
}

/* A kernel for several columns, and the number of groups of eight columns in one launch; 0: it cannot compute
 * them. */
struct way {
    linear_kind kernel;
    int eights;
};
static way way_by_rule(linear_job *j, const pack_format *f) {
    int eights = j->n_col <= MAX_KEPT_COLUMNS ? kept_eights(j, f, j->n_col)
                                              : 0; /* with more columns, clusters are faster */
    if (eights)
        return {LINEAR_KEPT, eights};
    if (j->n_col <= MAX_COLUMNS && (eights = pair_eights(j, f, j->n_col)) > 0)
        return {LINEAR_PAIR, eights};
    if ((eights = stream_eights(j, f, j->n_col)) > 0)
        return {LINEAR_STREAM, eights};
    eights = cluster_eights(j, f, j->n_col);
    return eights ? way{LINEAR_CLUSTER, eights}
                  : way{LINEAR_MANY, n_eight(j->n_col < MAX_COLUMNS ? j->n_col : MAX_COLUMNS)};
}
static way way_find(linear_job *j, const pack_format *f, linear_kind kind) {
    const int max_columns = kind == LINEAR_KEPT ? (int)MAX_KEPT_COLUMNS : (int)MAX_COLUMNS;
    const int n_col = j->n_col < max_columns ? j->n_col : max_columns;
    switch (kind) {
    case LINEAR_KEPT: return {kind, kept_eights(j, f, n_col)};
    case LINEAR_PAIR: return {kind, pair_eights(j, f, n_col)};
    case LINEAR_STREAM: return {kind, stream_eights(j, f, j->n_col)};
    case LINEAR_CLUSTER: return {kind, cluster_eights(j, f, j->n_col)};
    case LINEAR_MANY: return {kind, n_eight(n_col)};
    default: return way_by_rule(j, f);
    }
}

/* Whether the previous launch may have left the columns, and this one may leave its own, with this kernel. */
static bool way_takes(const linear_job &j, way by) {
    return j.n_col <= MAX_LEFT_ROWS && j.act_group == 32 && j.k % TILE_CHUNK_K == 0 && !j.two &&
           (by.kernel == LINEAR_KEPT || (by.kernel == LINEAR_PAIR && kept_order(j.n_col) == META_PAIRS));
}

/* Computes columns that the previous launch has left. */
static int run_left(linear_job *j, way by, cuda_stream s) {
    const codes_rows at = codes_rows_of((void *)j->coded, nullptr, j->k, j->n_col);
    j->codes = (const uint4 *)at.codes;
    j->meta = (const float4 *)at.scales;
    j->squares = at.squares;
    return by.kernel == LINEAR_KEPT ? kept_launch(j, by.eights, s) : pair_launch(j, by.eights, s);
}

int64_t linear_left_rows(const view *w) {
    int64_t rows = 1;
    for (int64_t n = 2; n <= MAX_LEFT_ROWS; n = n < 4 ? 4 : 2 * n) {
        cuda_linear a = {};
        linear_job j;
        a.n_w = 1;
        a.w[0] = *w;
        a.n_row = n;
        if (linear_job_make(&a, &j) || !way_takes(j, way_by_rule(&j, &w->format)))
            break;
        rows = n;
    }
    return rows;
}

static int run_many(const cuda_linear *a, linear_job *j, way by, cuda_stream s) {
    const int eights = by.eights;
    if ((j->coded || j->leaves_rows.codes) && !way_takes(*j, by))
        return CUDA_UNSUPPORTED;
    if (j->coded)
        return run_left(j, by, s);
    const meta_order order = by.kernel == LINEAR_MANY      ? META_SUMS
                             : by.kernel == LINEAR_STREAM  ? META_RECORDS
                             : by.kernel == LINEAR_CLUSTER ? META_PLAIN
                             : by.kernel == LINEAR_PAIR    ? META_PAIRS
                                                           : kept_order(j->n_col);
    const int e = many_quantize(a, j, eights, order, s);
    if (e || by.kernel != LINEAR_MANY)
        return e                            ? e
               : by.kernel == LINEAR_KEPT   ? kept_launch(j, eights, s)
               : by.kernel == LINEAR_PAIR   ? pair_launch(j, eights, s)
               : by.kernel == LINEAR_STREAM ? stream_launch(j, eights, s)
                                            : cluster_launch(j, eights, s);
    return many_launch(j, &a->w[0].format, eights, s);
}

static int run_one(const cuda_linear *a, linear_job *j, cuda_stream s) {
    const pack_format *f = &a->w[0].format;
    const int e = left_launch(j, f, s);
    return e == CUDA_UNSUPPORTED ? one_launch(j, f, s) : e;
}

bool linear_leaves_whole(const cuda_linear *a) {
    linear_job j;
    return a->n_row == 1 && linear_job_make(a, &j) == 0 && j.n_col == 1 &&
           left_leaves_whole(&j, &a->w[0].format);
}

bool linear_sums(const cuda_linear *a) {
    linear_job j;
    return a->n_row == 1 && a->n_w == 1 && linear_job_make(a, &j) == 0 && j.n_col == 1 &&
           left_sums(j, &a->w[0].format);
}

/* Computes rows [first, first + n). A single last row is computed alone. */
static int run_rows(const cuda_linear *a, linear_kind kind, int64_t first, int64_t n, cuda_stream s) {
    cuda_linear part = *a;
    linear_job j;
    part.n_row = n;
    part.x += first * a->ldx;
    for (int i = 0; i < a->n_w; i++)
        part.y[i] += first * a->ldy[i];
    const int e = linear_job_make(&part, &j);
    if (e)
        return e;
    if (j.n_col == 1)
        return run_one(&part, &j, s);
    const way by = way_find(&j, &a->w[0].format, kind);
    return by.eights ? run_many(&part, &j, by, s) : run_many(&part, &j, way_by_rule(&j, &a->w[0].format), s);
}

int linear_launch_as(const cuda_linear *a, linear_kind kind, cuda_stream s) {
    linear_job j;
    if (a->n_row < 1 || a->n_row > CUDA_MAX_ROWS)
        return CUDA_UNSUPPORTED;
    const int each = a->two ? 2 : 1;
    int e = linear_job_make(a, &j);
    if (e)
        return e;
    if ((kind == LINEAR_ONE && j.n_col > 1) || (kind > LINEAR_ONE && j.n_col == 1))
        return CUDA_UNSUPPORTED;
    const int64_t max_rows = 8 * way_find(&j, &a->w[0].format, kind).eights / each;
    if (max_rows < 1)
        return CUDA_UNSUPPORTED;
    for (int64_t first = 0; first < a->n_row && !e; first += max_rows)
        e = run_rows(a, kind, first, a->n_row - first < max_rows ? a->n_row - first : max_rows, s);
    return e;
}
