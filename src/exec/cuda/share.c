/* share.c - the facts by which plan/homes.h shares the GPU's memory: for the back end when it is opened,
 * and for a plan that may be made on a machine without a GPU. If not all layers fit beside the memory of the
 * back end and its sequences, the others come for each visit (weights/device_store.h) or, in passes of
 * generated rows, are computed by the processor (in_place.c). */
#include "base/mem.h"
#include "base/num.h"
#include "exec/cuda/cuda.h"
#include "exec/cut.h"
#include "kernels/salient.h"
#include "memory/device_cuda.h"

#include <stdio.h>
#include <string.h>

/* Opening an H200 took 524 MiB with CUDA 13; the rest is reserved for kernels and graphs that are loaded
 * later (device_cuda.c). Other devices and drivers take 0.3 to 0.6 GB. */
enum { GUESS_DRIVER = (524 + 64) << 20 };
/* A 64th of the device stays free: the driver takes more memory when kernels are loaded, and other programs
 * may. */
enum { LEFT_FREE = 64 };

/* ---- sizes without a device ----
 *
 * The same formulas as in the kernels (docs/gpu.md names the files), for a device that has kernels for many
 * rows. Other devices need less. */

static size_t guess_codes(int64_t k) {
    enum { CHUNK = 256, ROWS = 16, EACH = ROWS * (32 + 4 + 4) };
    return (size_t)num_round_up(k, CHUNK) / 32 * EACH;
}

static size_t guess_linear(int64_t n_row, int64_t k, bool two) {
    const size_t k_pad = (size_t)num_round_up(k, 256);
    const size_t columns = (size_t)num_round_up(NUM_MIN(n_row * (two ? 2 : 1), INT64_C(64)), 8);
    return k_pad * columns + k_pad / 16 * columns * 8 + 2 * columns * sizeof(float);
}

static bool guess_has(void) {
    return true;
}

static size_t guess_wide(int64_t n_row, int64_t k) {
    enum { ROWS = 64, TILE = 64 };
    return (size_t)num_round_up(n_row, ROWS) *
           ((size_t)num_round_up(k, TILE) * sizeof(uint16_t) + sizeof(float));
}

static size_t guess_mixed(int64_t n_row, int64_t k) {
    enum { MULTIPROCESSORS = 132, TILE = 128, CHUNK = 1024, FLOATS = 132 /* bytes of a row's */ };
    const int64_t rows = num_round_up(n_row, TILE), wide = num_round_up(k, TILE);
    return (size_t)(rows * (wide + wide / 8 + FLOATS) + MULTIPROCESSORS * (num_round_up(k, CHUNK) / CHUNK) *
                                                            TILE * TILE * (int64_t)sizeof(float));
}

static size_t guess_attend(int64_t n_row, int64_t n_head, int64_t d_head) {
    enum { COUNTERS = 1 << 16 };
    const int64_t heads = n_head * (d_head + 2) * (int64_t)sizeof(float);
    const int64_t shared = NUM_MIN(n_row, (int64_t)CUDA_SHARED_ROWS) * CUDA_SHARED_SPLIT * heads;
    const int64_t other = n_row * cuda_attend_split(d_head) * heads;
    return COUNTERS + (size_t)(d_head > 256 ? shared : NUM_MAX(shared, other));
}

static size_t guess_residual(int64_t n_row, int64_t k, int64_t k_chunk) {
    return CUDA_FETCH_HEAD + (size_t)(n_row * salient_count(k, k_chunk)) * 2 * sizeof(float);
}

static size_t guess_shortlist(void) {
    enum { MULTIPROCESSORS = 132, WARPS = 16 };
    return CUDA_SHORT_HEAD + MULTIPROCESSORS * WARPS * sizeof(float);
}

/* Whether the head's format can have a sketch, among the formats that a layout has. */
static bool guess_takes(const view *head) {
    return head->format.bits >= 6;
}

static size_t guess_sample(int64_t n_row) {
    enum { BLOCKS = 64 };
    return (size_t)num_round_up(n_row * 4, 256) + (size_t)n_row * BLOCKS * CUDA_MAX_TOP * sizeof(uint64_t);
}

/* A table with only the functions for sizes, those of a GPU of compute capability 9.0. */
static const cuda_kernels *guessed_sizes(void) {
    static const cuda_kernels sizes = {.linear_scratch = guess_linear,
                                       .has_wide = guess_has,
                                       .wide_scratch = guess_wide,
                                       .has_batch = guess_has,
                                       .mixed_scratch = guess_mixed,
                                       .codes_bytes = guess_codes,
                                       .attend_scratch = guess_attend,
                                       .residual_scratch = guess_residual,
                                       .sample_scratch = guess_sample,
                                       .sketch_takes = guess_takes,
                                       .shortlist_scratch = guess_shortlist};
    return &sizes;
}

/* ---- facts ---- */

/* Bytes of a block's keys and values in a page of this type. */
static uint64_t cache_of(const cuda *c, type_id type, int b) {
    const program *p = &layout_block(c->setup.layout, b)->program;
    uint64_t sum = 0, each;
    for (int i = 0; i < p->n_op; i++)
        if (p->ops[i].kind == OP_ATTENTION && kv_paging_half(&p->ops[i], type, &each))
            sum += p->ops[i].u.attn.shared ? each : 2 * each;
    return sum;
}

/* Whether they are in a page's part. */
static bool is_in_part(const cuda *c, int b) {
    const program *p = &layout_block(c->setup.layout, b)->program;
    bool all = false;
    for (int i = 0; i < p->n_op; i++)
        if (p->ops[i].kind == OP_ATTENTION)
            all = kv_paging_slides(c->setup.layout, c->setup.kv, p->ops[i].u.attn.layer);
    return all;
}

/* Divides the bytes that other modules allocate into pages, their parts, and the rest, as kv_tables_bytes
 * counts them. */
static void count_pages(const cuda *c, uint64_t n_kept, const kv_paging *p, homes_question *q) {
    const int64_t n_table = NUM_MAX(c->setup.n_sequence, 1);
    const uint64_t each = p->page_bytes + p->part_bytes;
    kv_amount n = {.page = each ? (int64_t)(n_kept / each) : 0};
    q->page = p->page_bytes;
    q->part = p->part_bytes;
    if (p->window > 0) {
        n = kv_table_amount(p, n_table, NUM_MAX(n.page, num_div_up(c->setup.n_ctx, KV_BLOCK)));
        n.part += kv_parts_together(p, n);
        n.part = NUM_MIN(n.part, (int64_t)(n_kept / p->part_bytes));
        if (p->page_bytes > 0)
            n.page = (int64_t)((n_kept - (uint64_t)n.part * p->part_bytes) / p->page_bytes);
    }
    q->n_page = (uint64_t)n.page;
    q->n_part = (uint64_t)n.part;
    q->session = n_kept - q->n_page * q->page - q->n_part * q->part;
}

/* The number of launches of a block for a generated row. */
static int launches_of(const cuda *c, int b) {
    int n = c->blocks[b].n;
    for (int i = 0; i < c->blocks[b].n; i++)
        n += steps_has_outliers(c, b, &c->blocks[b].list[i]);
    return n;
}

/* The smaller of the cap and the device's free memory. */
static void find_capacity(const cuda *c, uint64_t cap, homes_question *q) {
    device_info info = {.free = 0};
    if (c->base.device)
        c->base.device->kind->info(c->base.device, &info);
    const uint64_t has = info.bytes > 0 ? info.free - NUM_MIN(info.free, info.bytes / LEFT_FREE) : NIB_AUTO;
    q->capped = cap <= has;
    q->capacity = NUM_MIN(cap, has);
    snprintf(q->capacity_of, sizeof q->capacity_of, "%s", q->capped ? "the cap" : info.name);
}

/* Where keys and values may be, and who may attend to them. */
typedef struct attention_facts {
    bool stores; /* each layer has its own */
    bool width;  /* and the processor's order of a head's can be that of the kernels (device_kind.reorder) */
    bool is_alone; /* each block has one attention at most, which needs no weights */
} attention_facts;
static attention_facts facts_of(const model *m) {
    attention_facts all = {true, true, true};
    for (int b = 0; b < model_n_block(m); b++) {
        const program *p = &model_block(m, b)->program;
        for (int i = 0; i < p->n_op; i++) {
            const op *o = &p->ops[i];
            if (o->kind != OP_ATTENTION)
                continue;
            all.stores = all.stores && op_stores(o);
            all.width = all.width && op_stores(o) && o->u.attn.d_head % 8 == 0;
            all.is_alone = all.is_alone && cut_at(p) == i && o->w < 0;
        }
    }
    return all;
}

/* The facts with `cap` bytes that are free under the cap. */
static nib_status share_ask(cuda *c, const backend_rows *rows, uint64_t cap, homes_question *q,
                            nib_error *err) {
    const model *m = cuda_model(c);
    const bool is_coded = kv_is_coded(c->setup.kv.type);
    const attention_facts attention = facts_of(m);
    const int n_block = layout_n_block(c->setup.layout);
    *q = (homes_question){.n_block = n_block,
                          .sketch = estimates_bytes(c),
                          .needs_sketch = c->setup.sketch,
                          .driver = c->driver,
                          .max_layers = c->setup.max_layers,
                          .n_cpu_experts = c->setup.n_cpu_experts,
                          .n_attended = c->setup.n_attended,
                          .max_rows = IN_PLACE_MAX_ROWS,
                          .n_sequence = c->setup.n_sequence,
                          .many_from = c->k->has_batch() ? CUDA_MIN_BATCH : 0,
                          /* the newest positions of a sequence are on the GPU, like its codes, and
                             recurrent states */
                          .one_cache = is_coded || model_state_bytes(m) > 0 || !attention.width,
                          .stages = attention.stores,
                          .kv = !is_coded                      ? PLAN_KV_HALVES
                                : c->setup.kv.type == TYPE_KV8 ? PLAN_KV_CODES_8
                                                               : PLAN_KV_CODES_4,
                          .attends = attention.width && attention.is_alone};
    find_capacity(c, cap, q);
    if (c->base.device) {
        device_info info;
        c->base.device->kind->info(c->base.device, &info);
        q->like = (gpu_rates){info.read, info.link, info.macs};
    }
    q->activations = gpu_workspace_device_bytes(c, rows);
    kv_paging sizes;
    NIB_TRY(kv_paging_size(&sizes, c->setup.layout, c->setup.kv, false, err));
    count_pages(c, rows->n_kept, &sizes, q);
    if (is_coded)
        NIB_TRY(kv_paging_size(&sizes, c->setup.layout, kv_formats_newest(c->setup.kv), false, err));
    q->newest = is_coded ? sizes.page_bytes : 0;
    q->n_table = q->session / NUM_MAX(q->newest + 2 * model_state_bytes(m), 1);
    q->n_page_each = (uint64_t)num_div_up(c->setup.n_ctx, KV_BLOCK);
    q->blocks = mem_calloc((size_t)n_block, sizeof *q->blocks);
    if (!q->blocks)
        return nib_fail_nomem(err, (size_t)n_block * sizeof *q->blocks, "the blocks on the GPU");
    for (int b = 0; b < n_block; b++)
        q->blocks[b] = (homes_block){.apart = !c->setup.sums && c->setup.k_chunk == 0 &&
                                              experts_host_can(c->setup.layout, b),
                                     .cache = cache_of(c, c->setup.kv.type, b),
                                     .slides = is_in_part(c, b),
                                     .newest = is_coded ? cache_of(c, TYPE_F16, b) : 0,
                                     .n_launch = launches_of(c, b)};
    return NIB_OK;
}

void share_kernels(cuda *c, const cuda_kernels *k) {
    c->k = k;
    c->batched = k->has_batch() && c->setup.n_sequence >= CUDA_MIN_BATCH;
}

/* ---- before opening ---- */

/* The device, or guessed sizes without one. */
static nib_status find_device(cuda *c, uint64_t cap, nib_error *err) {
    nib_error why;
    const nib_status status = device_open(c->setup.places, c->setup.place, &c->base.device, &why);
    if (status == NIB_OK) {
        share_kernels(c, device_cuda_kernels(c->base.device));
        c->driver = device_cuda_driver(c->base.device);
        return NIB_OK;
    }
    if (status == NIB_E_NOMEM)
        return nib_fail(err, status, "backend 'cuda': %s", why.message);
    if (cap == NIB_AUTO)
        return nib_fail(err, NIB_E_DEVICE, "backend 'cuda': %s; --vram SIZE plans for one of that size",
                        why.message);
    share_kernels(c, guessed_sizes());
    c->driver = GUESS_DRIVER;
    return NIB_OK;
}

static nib_status ask(cuda *c, const backend_rows *rows, uint64_t cap, homes_question *out, nib_error *err) {
    char size[32], more[32];
    NIB_TRY(find_device(c, cap, err));
    if (c->driver > cap)
        return nib_fail(err, NIB_E_NOFIT, "VRAM: the driver takes %s, the cap is %s",
                        num_format_size(c->driver, more), num_format_size(cap, size));
    NIB_TRY(steps_open(c, err));
    NIB_TRY(share_ask(c, rows, cap == NIB_AUTO ? cap : cap - c->driver, out, err));
    out->absent = !c->base.device;
    return NIB_OK;
}

nib_status cuda_share(backend *open, const backend_setup *s, const backend_rows *rows, uint64_t cap,
                      homes_question *out, nib_error *err) {
    *out = (homes_question){0};
    if (open)
        return share_ask(cuda_of(open), rows, cap, out, err);
    cuda *c = mem_calloc(1, sizeof *c);
    if (!c)
        return nib_fail_nomem(err, sizeof *c, "the GPU");
    c->setup = *s;
    const nib_status status = ask(c, rows, cap, out, err);
    steps_close(c);
    device_close(c->base.device);
    mem_free(c);
    return status;
}
