/* recurrent.cu - ops with a recurrent state: the short convolution, Mamba-2's state space, Mamba-1's, and the
 * gated delta rule (kernels/kernels.h has their formulas).
 *
 * All but the convolution have a state of rows (keys, or states) and columns (values, or channels). A block
 * has 32 columns of a head and goes through the rows of a sequence in order. Four lanes share a column: each
 * has every fourth row of the state in registers, and sums over rows are those of the lanes in pairs. What
 * the rows of the state need of the next input is loaded while the present one is computed, and is passed to
 * all lanes through shared memory, one barrier for each input. So a row has the same bits in one launch or
 * in several.
 *
 * On 9.0 the blocks of a head are a cluster if a norm of heads and a gate follow. They send each other their
 * outputs of a row, and each finishes its own.
 *
 * Launches of generated rows have many sequences. A block with a row that continues the sequence of the row
 * before has no work: the block of the first row computes it. */
#include "kernels/cuda/cluster.cuh"
#include "kernels/cuda/codes.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/launches.h"
#include "kernels/cuda/row_math.cuh"

#include "kernels/kernels.h"

enum { STATE_THREADS = 128, STATE_COLUMNS = 32, PARTS = 4 /* lanes of a column */ };
enum { MAX_TOGETHER = 8 /* blocks of a cluster */ };

/* The rows of one sequence. */
struct state_run {
    int first, end;
    float *state; /* of the op */
};

__device__ __forceinline__ float *state_at(const cuda_recurrent &a, int32_t number) {
    return (float *)(a.origin + (int64_t)number * a.unit) + a.at;
}

/* The run that begins with row `row`; first == end: it has begun before. */
__device__ __forceinline__ state_run run_of(const cuda_recurrent &a, int row) {
    const int number = a.state[row];
    state_run r = {row, (int)a.n_row, state_at(a, number)};
    if (a.together)
        return r;
    r.end = row;
    if (row > 0 && a.state[row - 1] == number)
        return r;
    while (r.end < a.n_row && a.state[r.end] == number)
        r.end++;
    return r;
}

/* Where the state after this row is stored too; NULL: nowhere. */
__device__ __forceinline__ float *saved_at(const cuda_recurrent &a, int row) {
    const int number = a.save[row];
    return number == CUDA_NO_STATE ? nullptr : state_at(a, number);
}

__device__ __forceinline__ float soft_plus(float x) {
    return x > 20.0f ? x : log1pf(expf(x));
}

/* ---- states of rows and columns ---- */

/* A block's part of the op. */
struct state_place {
    int head, rows, n_column; /* rows and columns of the head's state */
    int q, k, v, g;           /* columns of the inputs: q or C, k or B; values; decays of the head */
};
template <int KIND> __device__ __forceinline__ state_place place_of(const cuda_recurrent &a, int h) {
    const int d = (int)a.d_head, n = (int)a.d_state;
    if (KIND == OP_SCAN)
        return {0, n, (int)a.n, n, 0, 0, 0};
    const int n_head = (int)a.n_head, n_group = (int)a.n_group;
    const int group = a.tiled ? h % n_group : h / (n_head / n_group);
    if (KIND == OP_SSD)
        return {h, n, d, n_head * d + (n_group + group) * n, n_head * d + group * n, h * d, h};
    return {h, n, d, group * n, (n_group + group) * n, 2 * n_group * n + h * d, a.by_channel ? h * n : h};
}

/* What is loaded of the next input: a lane's elements of q, k and the decays, and its column's value. */
template <int M> struct state_ahead { float q[M], k[M], g[M], v, rate; };
template <int KIND, int M>
__device__ __forceinline__ void ahead_load(const cuda_recurrent &a, const state_place &p, int64_t row,
                                           int column, state_ahead<M> *to) {
    const float *const x = a.x + row * a.ldx, *const qk = KIND == OP_SCAN ? a.x3 + row * a.ldx3 : x,
                       *const decay = a.x3 + row * a.ldx3 + p.g;
#pragma unroll
    for (int m = 0; m < M; m++) {
        const int i = threadIdx.x % 32 + 32 * m;
        const bool there = i < p.rows;
        to->q[m] = there ? __ldcg(qk + p.q + i) : 0.0f;
        to->k[m] = there ? __ldcg(qk + p.k + i) : 0.0f;
        to->g[m] = 0.0f;
        if (KIND == OP_DELTA && there && (a.by_channel || i == 0))
            to->g[m] = __ldcg(decay + i);
    }
    to->v = column < p.n_column ? __ldcg(x + p.v + column) : 0.0f;
    to->rate = 0.0f;
    if (KIND == OP_SCAN)
        to->rate = column < p.n_column ? __ldcg(a.x2 + row * a.ldx2 + column) : 0.0f;
    else
        to->rate = __ldcg(a.x2 + row * a.ldx2 + p.head);
}

/* An input as all lanes of the block read it. rate: beta, or dt. */
template <int ROWS> struct state_input {
    float q[ROWS], k[ROWS], keep[ROWS];
    float one_keep, rate;
};

__device__ __forceinline__ float lanes_sum(float x, int first, int last) {
    for (int o = first; o <= last; o *= 2)
        x = __fadd_rn(x, __shfl_xor_sync(~0u, x, o));
    return x;
}

/* Passes the loaded input to all lanes. Warps take turns with 32 rows. */
template <int KIND, int M>
__device__ __forceinline__ void input_pass(const cuda_recurrent &a, const state_place &p,
                                           const state_ahead<M> &from, state_input<32 * M> *to) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    float by_q = 1.0f, by_k = 1.0f;
    if (KIND == OP_DELTA) { /* q and k have length 1 */
        float q = 0.0f, k = 0.0f;
#pragma unroll
        for (int m = 0; m < M; m++)
            q = __fmaf_rn(from.q[m], from.q[m], q), k = __fmaf_rn(from.k[m], from.k[m], k);
        by_q = __fdiv_rn(__fdiv_rn(1.0f, __fsqrt_rn((float)p.rows)),
                         __fsqrt_rn(__fadd_rn(lanes_sum(q, 1, 16), 1e-6f)));
        by_k = __fdiv_rn(1.0f, __fsqrt_rn(__fadd_rn(lanes_sum(k, 1, 16), 1e-6f)));
    }
#pragma unroll
    for (int m = 0; m < M; m++)
        if (m % (STATE_THREADS / 32) == warp) {
            const int i = lane + 32 * m;
            to->q[i] = __fmul_rn(from.q[m], by_q);
            to->k[i] = __fmul_rn(from.k[m], by_k);
            if (KIND == OP_DELTA && a.by_channel) /* rows that are not there are multiplied too */
                to->keep[i] =
                    i < p.rows ? expf(__fmul_rn(a.w[p.head], soft_plus(__fadd_rn(from.g[m], a.b[p.g + i]))))
                               : 0.0f;
        }
    if (threadIdx.x == STATE_THREADS - 32) {
        if (KIND == OP_DELTA) {
            to->rate = sigmoid(from.rate);
            if (!a.by_channel)
                to->one_keep = expf(__fmul_rn(a.w[p.head], soft_plus(__fadd_rn(from.g[0], a.b[p.g]))));
        }
        if (KIND == OP_SSD) {
            const float dt = soft_plus(__fadd_rn(from.rate, a.b[p.head]));
            to->rate = dt < a.dt_min ? a.dt_min : dt > a.dt_max ? a.dt_max : dt;
            to->one_keep = expf(__fmul_rn(to->rate, a.w[p.head]));
        }
    }
}

/* The lane's rows of its column's state: part, part + 4, ... */
template <int PER>
__device__ __forceinline__ void state_load(const state_place &p, const float *from, int64_t ld, int column,
                                           bool zeros, float (&s)[PER]) {
#pragma unroll
    for (int i = 0; i < PER; i++) {
        const int row = (int)threadIdx.x % PARTS + PARTS * i;
        s[i] = !zeros && row < p.rows && column < p.n_column ? __ldcg(from + row * ld + column) : 0.0f;
    }
}
template <int PER>
__device__ __forceinline__ void state_store(const state_place &p, float *to, int64_t ld, int column,
                                            const float (&s)[PER]) {
#pragma unroll
    for (int i = 0; i < PER; i++) {
        const int row = (int)threadIdx.x % PARTS + PARTS * i;
        if (row < p.rows && column < p.n_column)
            to[row * ld + column] = s[i];
    }
}

/* Adds an input to the state. Returns the column's output, without what skips the state. decay: of Mamba-1,
 * the lane's. */
template <int KIND, int PER, int ROWS>
__device__ __forceinline__ float state_step(const cuda_recurrent &a, const state_input<ROWS> &in, float v,
                                            float dt, const float (&decay)[KIND == OP_SCAN ? PER : 1],
                                            float (&s)[PER]) {
    const int part = threadIdx.x % PARTS;
    const bool channels = KIND == OP_DELTA && a.by_channel;
    float step = __fmul_rn(v, KIND == OP_SCAN ? dt : in.rate), y = 0.0f;
    float keep[KIND == OP_DELTA || KIND == OP_SCAN ? PER : 1];
    if (KIND != OP_SSD)
#pragma unroll
        for (int i = 0; i < PER; i++)
            keep[i] = KIND == OP_SCAN ? expf(__fmul_rn(dt, decay[i]))
                      : channels      ? in.keep[part + PARTS * i]
                                      : in.one_keep;
    if (KIND == OP_DELTA) {
        float known = 0.0f;
#pragma unroll
        for (int i = 0; i < PER; i++)
            known = __fmaf_rn(s[i], __fmul_rn(keep[i], in.k[part + PARTS * i]), known);
        known = lanes_sum(known, 1, PARTS / 2);
        step = __fmul_rn(__fsub_rn(v, known), in.rate);
    }
#pragma unroll
    for (int i = 0; i < PER; i++) {
        s[i] =
            __fmaf_rn(step, in.k[part + PARTS * i], __fmul_rn(s[i], KIND == OP_SSD ? in.one_keep : keep[i]));
        y = __fmaf_rn(s[i], in.q[part + PARTS * i], y);
    }
    return lanes_sum(y, 1, PARTS / 2);
}

/* The norm and the gate of a row of a head, whose `mine`th 32 outputs the block has, by all blocks of a
 * cluster. The sum of squares has the order of `norm`. all: [outputs of the head], with which the row before
 * last began. */
__device__ __forceinline__ void head_finish(const cuda_recurrent &a, const codes_row &leaves, int row,
                                            int head, int mine, float y, float *all) {
    const int lane = threadIdx.x % 32, n = (int)a.d_head / STATE_COLUMNS;
    for (int to = threadIdx.x % PARTS; to < n; to += PARTS)
        cluster_store(all + mine * STATE_COLUMNS + (int)threadIdx.x / PARTS, to, y);
    cluster_arrive_all();
    const int at = head * (int)a.d_head + mine * STATE_COLUMNS + lane;
    const bool finishes = threadIdx.x < 32;
    const float by = finishes ? a.norm[mine * STATE_COLUMNS + lane] : 0.0f,
                gate = finishes ? __ldcg(a.gate + row * a.ldg + at) : 0.0f;
    cluster_wait_all();
    if (!finishes)
        return;
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < MAX_TOGETHER; i++) {
        const float v = i < n ? all[i * STATE_COLUMNS + lane] : 0.0f;
        sum = i < n ? __fmaf_rn(v, v, sum) : sum;
    }
    const float factor = norm_factor_of(pairs_sum(sum, 32), (float)a.d_head, a.eps);
    const float v =
        gate_value(a.act, gate, __fmul_rn(__fmul_rn(all[mine * STATE_COLUMNS + lane], factor), by));
    a.out[row * a.ldo + at] = v;
    if (leaves.codes)
        group_leave(leaves, at, v, leaves.norm ? leaves.norm[at] : 1.0f);
}

/* Blocks: x has 32 columns, y a row, z a head; if they finish heads, x a head and z 32 columns, which are a
 * cluster. PER: rows of the state in a lane; M: its loads of q and k. */
template <int KIND, int PER, bool FINISHES>
__global__ void __launch_bounds__(STATE_THREADS)
    state_rows(const __grid_constant__ cuda_recurrent a, const __grid_constant__ codes_row leaves) {
    enum { M = PER < 8 ? 1 : PER / 8, ROWS = 32 * M };
    static_assert((int)ROWS >= PARTS * PER, "all rows are passed");
    __shared__ state_input<ROWS> inputs[2];
    __shared__ float outputs[FINISHES ? 2 : 1][FINISHES ? MAX_TOGETHER * STATE_COLUMNS : 1];
    const int part = FINISHES ? blockIdx.z : blockIdx.x, head = FINISHES ? blockIdx.x : blockIdx.z;
    const int column = part * STATE_COLUMNS + (int)threadIdx.x / PARTS;
    const state_place p = place_of<KIND>(a, head);
    const int64_t ld = KIND == OP_SCAN ? a.n : a.d_head;
    launch_next();
    if (FINISHES)
        cluster_arrive_all();
    launch_wait();
    const state_run run = run_of(a, blockIdx.y);
    if (FINISHES)
        cluster_wait_all(); /* all blocks have begun */
    if (run.first >= run.end)
        return;
    const int64_t at = (int64_t)p.head * p.rows * ld;
    float s[PER], decay[KIND == OP_SCAN ? PER : 1] = {};
    state_load(p, run.state + at, ld, column, a.position[run.first] == 0, s);
    if (KIND == OP_SCAN)
#pragma unroll
        for (int i = 0; i < PER; i++) {
            const int row = (int)threadIdx.x % PARTS + PARTS * i;
            decay[i] = row < p.rows && column < p.n_column ? a.w[(int64_t)column * p.rows + row] : 0.0f;
        }
    const float skip = KIND == OP_DELTA      ? 0.0f
                       : KIND == OP_SSD      ? a.skip[p.head]
                       : column < p.n_column ? a.skip[column]
                                             : 0.0f;
    state_ahead<M> ahead;
    ahead_load<KIND>(a, p, run.first, column, &ahead);
    for (int row = run.first; row < run.end; row++) {
        state_input<ROWS> *const in = &inputs[(row - run.first) % 2];
        const float v = ahead.v, rate = ahead.rate;
        input_pass<KIND>(a, p, ahead, in);
        __syncthreads(); /* lanes that still read the input before are at most one behind */
        if (row + 1 < run.end)
            ahead_load<KIND>(a, p, row + 1, column, &ahead);
        float y = state_step<KIND, PER>(a, *in, v, KIND == OP_SCAN ? soft_plus(rate) : 0.0f, decay, s);
        if (KIND != OP_DELTA)
            y = __fmaf_rn(v, skip, y);
        if (FINISHES)
            head_finish(a, leaves, row, head, part, y, outputs[(row - run.first) % 2]);
        else if (threadIdx.x % PARTS == 0 && column < p.n_column)
            a.out[row * a.ldo + (KIND == OP_SCAN ? 0 : p.head * a.d_head) + column] = y;
        float *const saved = saved_at(a, row);
        if (saved)
            state_store(p, saved + at, ld, column, s);
    }
    state_store(p, run.state + at, ld, column, s);
}

template <int KIND, bool FINISHES> static int state_launch(const cuda_recurrent *a, cuda_stream s) {
    const int64_t rows = a->d_state, columns = KIND == OP_SCAN ? a->n : a->d_head;
    const auto kernel = rows <= 16    ? state_rows<KIND, 4, FINISHES>
                        : rows <= 32  ? state_rows<KIND, 8, FINISHES>
                        : rows <= 64  ? state_rows<KIND, 16, FINISHES>
                        : rows <= 128 ? state_rows<KIND, 32, FINISHES>
                        : rows <= 256 ? state_rows<KIND, 64, FINISHES>
                                      : nullptr;
    const unsigned parts = (unsigned)((columns + STATE_COLUMNS - 1) / STATE_COLUMNS),
                   heads = KIND == OP_SCAN ? 1 : (unsigned)a->n_head;
    const dim3 grid(FINISHES ? heads : parts, a->together ? 1 : (unsigned)a->n_row, FINISHES ? parts : heads);
    const codes_row leaves = FINISHES && a->leaves.data ? codes_of(a->leaves, a->n) : codes_row{};
    const int e = !kernel || grid.y > 65535 || grid.z > 65535 ? (int)CUDA_UNSUPPORTED : prepare(kernel, 0);
    return e ? e : launch_cluster(kernel, grid, dim3(STATE_THREADS), FINISHES ? parts : 1, 0, s, *a, leaves);
}

/* OP_DELTA, the norm and the gate: in one launch for generated rows, on 9.0. Prompts would have a barrier of
 * a cluster for each row. */
static int delta_launch(const cuda_recurrent *a, cuda_stream s) {
    if (!a->norm)
        return state_launch<OP_DELTA, false>(a, s);
    if (a->d_head % STATE_COLUMNS || a->d_head > MAX_TOGETHER * STATE_COLUMNS || a->n_head < 2)
        return CUDA_UNSUPPORTED;
    if (device_major() >= 9 && !a->together)
        return state_launch<OP_DELTA, true>(a, s);
    cuda_norm norm = {NORM_RMS, a->out, a->norm};
    norm.out = a->out;
    norm.n_row = a->n_row;
    norm.ldx = norm.ldo = a->ldo;
    norm.k = a->n_head * a->d_head;
    norm.n_group = a->n_head;
    norm.eps = a->eps;
    cuda_each gate = {OP_GATE, a->act, a->gate, a->out};
    gate.out = a->out;
    gate.n_row = a->n_row;
    gate.n = norm.k;
    gate.ldx = a->ldg;
    gate.ldy = gate.ldo = a->ldo;
    gate.leaves = a->leaves;
    int e = state_launch<OP_DELTA, false>(a, s);
    e = e ? e : norm_launch(&norm, s);
    return e ? e : each_launch(&gate, s);
}

/* ---- the convolution ---- */

enum { CONV_THREADS = 128, CONV_AHEAD = 8 /* inputs in flight */ };

/* Input c of a row. */
__device__ __forceinline__ float conv_input(const cuda_recurrent &a, int64_t row, int64_t c) {
    const float x = a.x[row * a.ldx + c];
    return a.times ? __fmul_rn(a.times[row * a.ldt + c], x) : x;
}

/* The inputs before row `row` of a run: of earlier rows, and of the state. seen: the last k - 1, the newest
 * last. edges: where other blocks may have overwritten the rows before, their copies. */
__device__ __forceinline__ void conv_before(const cuda_recurrent &a, const state_run &run, int row, int64_t c,
                                            const float *edges, float (&seen)[CONV_MAX]) {
    const int k = (int)a.n_tap;
    const bool begins = a.position[run.first] == 0;
#pragma unroll
    for (int j = 0; j < CONV_MAX - 1; j++) {
        const int back = CONV_MAX - 1 - j, from = row - back; /* seen[j] is the input `back` rows before */
        float v = 0.0f;
        if (back < k) {
            if (from >= run.first)
                v = edges ? edges[(k - 1 - back) * a.n + c] : conv_input(a, from, c);
            else if (!begins)
                v = run.state[(k - 1 + from - run.first) * a.n + c];
        }
        seen[j] = v;
    }
}

__device__ __forceinline__ void conv_store(const cuda_recurrent &a, float *to, int64_t c,
                                           const float (&seen)[CONV_MAX]) {
    const int k = (int)a.n_tap;
#pragma unroll
    for (int j = 1; j < CONV_MAX; j++)
        if (CONV_MAX - j < k)
            to[(k - 1 - (CONV_MAX - j)) * a.n + c] = seen[j];
}

/* Blocks: x has channels, y a row, z a part of CUDA_CONV_ROWS rows, if all rows belong together. */
__global__ void __launch_bounds__(CONV_THREADS)
    conv_rows(const __grid_constant__ cuda_recurrent a, const __grid_constant__ codes_row leaves) {
    const int64_t c = (int64_t)blockIdx.x * CONV_THREADS + threadIdx.x;
    const int k = (int)a.n_tap;
    launch_next();
    launch_wait();
    const state_run run = run_of(a, blockIdx.y);
    const int begin = run.first + (int)blockIdx.z * CUDA_CONV_ROWS,
              end = a.together ? min(run.end, begin + CUDA_CONV_ROWS) : run.end;
    if (c >= a.n || begin >= end)
        return;
    const float *const edges =
        blockIdx.z ? (const float *)a.scratch + (blockIdx.z - 1) * (int64_t)(k - 1) * a.n : nullptr;
    const float norm = leaves.norm ? leaves.norm[c] : 1.0f;
    float w[CONV_MAX], seen[CONV_MAX]; /* the newest last; taps that are not there are zeros */
#pragma unroll
    for (int j = 0; j < CONV_MAX; j++)
        w[j] = CONV_MAX - j <= k ? a.w[c * k + j - (CONV_MAX - k)] : 0.0f;
    const float bias = a.b ? a.b[c] : 0.0f;
    conv_before(a, run, begin, c, edges, seen);
    for (int first = begin; first < end; first += CONV_AHEAD) {
        float x[CONV_AHEAD], gate[CONV_AHEAD];
#pragma unroll
        for (int i = 0; i < CONV_AHEAD; i++) {
            x[i] = first + i < end ? conv_input(a, first + i, c) : 0.0f;
            gate[i] = a.gate && first + i < end ? a.gate[(first + i) * a.ldg + c] : 0.0f;
        }
#pragma unroll
        for (int i = 0; i < CONV_AHEAD; i++) {
            if (first + i >= end)
                break;
            float sum = bias;
            seen[CONV_MAX - 1] = x[i];
#pragma unroll
            for (int j = 0; j < CONV_MAX; j++)
                sum = CONV_MAX - j <= k ? __fmaf_rn(seen[j], w[j], sum) : sum;
            sum = a.silu ? act_value(ACT_SILU, sum) : sum;
            sum = a.gate ? __fmul_rn(gate[i], sum) : sum;
            a.out[(first + i) * a.ldo + c] = sum;
            if (leaves.codes)
                group_leave(leaves, (int)c, sum, norm);
            float *const saved = saved_at(a, first + i);
            if (saved)
                conv_store(a, saved, c, seen);
#pragma unroll
            for (int j = 0; j + 1 < CONV_MAX; j++)
                seen[j] = seen[j + 1];
        }
    }
    if (end < run.end)
        return;
#pragma unroll
    for (int j = CONV_MAX - 1; j > 0; j--)
        seen[j] = seen[j - 1];
    conv_store(a, run.state, c, seen);
}

/* Copies the inputs before each part but the first, which the block of the part before overwrites. */
__global__ void __launch_bounds__(CONV_THREADS) conv_edges(const __grid_constant__ cuda_recurrent a) {
    const int64_t c = (int64_t)blockIdx.x * CONV_THREADS + threadIdx.x;
    const int part = blockIdx.y, k = (int)a.n_tap;
    launch_next();
    launch_wait();
    for (int j = 0; j < k - 1 && c < a.n; j++) {
        const int64_t row = (int64_t)(part + 1) * CUDA_CONV_ROWS - (k - 1) + j;
        ((float *)a.scratch)[(part * (int64_t)(k - 1) + j) * a.n + c] = conv_input(a, row, c);
    }
}

static int conv_launch(const cuda_recurrent *a, cuda_stream s) {
    const unsigned across = (unsigned)((a->n + CONV_THREADS - 1) / CONV_THREADS);
    const unsigned parts = a->together ? (unsigned)((a->n_row + CUDA_CONV_ROWS - 1) / CUDA_CONV_ROWS) : 1;
    const codes_row leaves = a->leaves.data ? codes_of(a->leaves, a->n) : codes_row{};
    if (a->n_tap < 1 || a->n_tap > CONV_MAX || a->norm)
        return CUDA_UNSUPPORTED;
    int e = prepare(conv_rows, 0);
    if (!e && parts > 1) {
        e = prepare(conv_edges, 0);
        e = e ? e : launch(conv_edges, dim3(across, parts - 1), dim3(CONV_THREADS), 0, s, *a);
    }
    return e ? e
             : launch(conv_rows, dim3(across, a->together ? 1 : (unsigned)a->n_row, parts),
                      dim3(CONV_THREADS), 0, s, *a, leaves);
}

int recurrent_launch(const cuda_recurrent *a, cuda_stream s) {
    if (a->n_row < 1 || a->n_row > CUDA_MAX_WIDE || (a->times && a->kind != OP_CONV) ||
        (a->leaves.data && (a->n_row > 1 || a->n % 32 || !a->gate)))
        return CUDA_UNSUPPORTED;
    switch (a->kind) {
    case OP_CONV: return conv_launch(a, s);
    case OP_SSD: return state_launch<OP_SSD, false>(a, s);
    case OP_SCAN: return state_launch<OP_SCAN, false>(a, s);
    case OP_DELTA: return delta_launch(a, s);
    default: return CUDA_UNSUPPORTED;
    }
}
