/* cost_device.c - the cost model with a GPU: seconds of a token and of a prompt; docs/budget.md has the
 * formulas. A token passes all blocks in order, so the times of the GPU and of the processor add up. Weights
 * are copied over the link meanwhile, for this token or the next. The processor and the link share the
 * memory's bandwidth. */
#include "plan/planner.h"

#include "base/num.h"

/* The share of the shorter time, of computing a prompt and of the link, that does not overlap with the longer
 * one: between two runs of 8b on an H200 with --vram 3G, a prompt of 512 at 10,100 and at 11,450 tok/s
 * (docs/gpu.md). */
#define APART 0.5
/* Share of one large product's rate that the products of a layer reach together (H200, 8b, 512 rows: 565 of
 * 692 TFLOP/s, docs/gpu.md): some have too few outputs to occupy the device. */
#define LAYER_SHARE 0.82
/* Share of the products' rate that attention reaches with many rows (H200: docs/gpu.md, the rate of a whole
 * layer against that of attention with 2,048 rows). */
#define ATTENTION_SHARE 0.45

/* What rows of answers that are computed together reach, of the memory's rate and of the products': 0.75 and
 * 0.5 of OPT-6.7B's weights (H200: ten rows of f16 take 4.3 ms, 64 of 4 bits 2.6), and of keys and values 0.4
 * in halves and 0.3 in kv4 (62 us a layer of ten sequences, 125 of 64). kv8 was not measured. */
#define ROWS_READ     0.75
#define ROWS_PRODUCTS 0.5
static const double rows_attend[PLAN_KV_WIDTHS] = {0.4, 0.4, 0.3};
/* Rows for which a prompt's products take as long as they would take at the rate of many rows, besides its
 * own: prompts of OPT-6.7B reach 217 G multiply-adds a second with 512 rows and 270 with 1,024, of 332
 * (H200). */
#define PASS_ROWS 200

plan_device_rows plan_device_of_rows(const plan_rates *r, int kv) {
    const double read = r->at[PLACE_GPU].read;
    return (plan_device_rows){.read = read * ROWS_READ,
                              .attend = read * rows_attend[kv],
                              .products = r->vram_macs * ROWS_PRODUCTS,
                              .prompts = r->vram_macs,
                              .pass_rows = PASS_ROWS};
}

double plan_device_products(const plan_rates *r) {
    return r->vram_macs * LAYER_SHARE;
}

double plan_device_attention(const plan_rates *r) {
    return r->vram_macs * ATTENTION_SHARE;
}

static double launches(const plan_question *q, int b) {
    return q->device->blocks[b].n_launch * q->rates.vram_launch;
}

static double bytes_of(const plan_question *q, int b) {
    return (double)q->device->blocks[b].bytes;
}

/* Whether the processor computes experts of the block for generated rows. */
static bool is_apart(const plan_question *q, int b) {
    return q->split->of[b].apart;
}

/* Bytes that a token reads of experts of such a block: of those in RAM, or with `here` of those on the GPU.
 */
static double expert_bytes(const plan_question *q, int b, int choice, bool here) {
    const plan_block_facts *f = &q->blocks[b];
    const double hit = homes_hit(q->device, q->split->n_kept);
    return (double)f->choices[choice].chosen_bytes * f->expert_share * (here ? hit : 1 - hit);
}

/* Bytes that a token reads on the GPU of `all` bytes of the block's weights. */
static double read_bytes(const plan_question *q, int b, int choice, double all) {
    const plan_block_facts *f = &q->blocks[b];
    const double chosen = NUM_MIN(all, (double)f->choices[choice].chosen_bytes);
    if (is_apart(q, b))
        return all - chosen + expert_bytes(q, b, choice, true);
    return homes_read_bytes(all, chosen, f->expert_share, 1);
}

/* Seconds of the processor's experts of a block. */
static double expert_seconds(const plan_question *q, int b, int choice) {
    const homes_layer *l = &q->device->layer;
    return expert_bytes(q, b, choice, false) / q->rates.one_row[l->bits] *
               (l->two ? q->rates.two_slices : 1) +
           HOMES_APART_TURN;
}

/* Bytes of block b that cross the link for a pass of prompt rows. */
static double away(const plan_question *q, int b) {
    return b > 0 ? (double)q->split->of[b].away : 0;
}
/* The same of generated rows. */
static double away_for_token(const plan_question *q, int b) {
    return is_apart(q, b) ? 0 : away(q, b);
}

bool plan_is_resident_on_gpu(const plan_question *q, int b) {
    return q->split && b > 0 && q->split->of[b].kind == HOME_RESIDENT;
}

bool plan_is_on_gpu(const plan_question *q, int b) {
    return q->split && b > 0 && q->split->of[b].kind != HOME_IN_PLACE;
}

uint64_t plan_bytes_on_gpu(const plan_question *q, int b, uint64_t all) {
    if (!plan_is_on_gpu(q, b))
        return 0;
    return plan_is_resident_on_gpu(q, b) ? all
                                         : NUM_MIN(all, q->device->blocks[b].bytes - q->split->of[b].away);
}

double plan_device_block_seconds(const plan_question *q, int b, int choice) {
    const double bytes = (double)q->blocks[b].choices[choice].bytes;
    if (b == 0) /* the embedding: rows are looked up */
        return q->blocks[b].n_op * q->rates.op_s;
    const double read = read_bytes(q, b, choice, NUM_MAX(bytes, bytes_of(q, b)));
    return read / q->rates.at[PLACE_GPU].read + launches(q, b) +
           (is_apart(q, b) ? expert_seconds(q, b, choice) : 0) +
           (bytes_of(q, b) > 0
                ? bytes * away_for_token(q, b) / bytes_of(q, b) / q->rates.at[PLACE_RAM].to[PLACE_GPU]
                : 0);
}

double plan_device_prompt_seconds(const plan_question *q, int b) {
    const double many = (double)q->n_prompt * (double)q->blocks[b].macs / q->rates.vram_macs;
    return (q->blocks[b].is_layer ? many : 0) + away(q, b) / q->rates.at[PLACE_RAM].to[PLACE_GPU];
}

/* The parts of the KV cache that the processor reads in its own layers and in those of the GPU, and that come
 * over the link. */
typedef struct cache_parts {
    double in_place, staged, attended;
} cache_parts;
static cache_parts cache_parts_of(const plan_question *q) {
    const homes_question *of = q->device;
    cache_parts p = {0, 0, 0};
    for (int b = 0; b < of->n_block && of->page > 0; b++) {
        const double share = (double)of->blocks[b].cache / (double)of->page;
        p.in_place += q->split->of[b].kind == HOME_IN_PLACE ? share : 0;
        p.staged += q->split->of[b].staged && !q->split->of[b].attended ? share : 0;
        p.attended += q->split->of[b].attended ? share : 0;
    }
    return p;
}

/* ---- a token ---- */

typedef struct device_work {
    double gpu_s, cpu_s;
    double vram, ram, link, disk, packed; /* bytes; packed: the bytes of disk in packed form */
} device_work;

/* Packed bytes of a block's pages on disk. */
static double streamed_bytes(const plan_question *q, const plan_decision *d, int b) {
    const uint64_t all = q->blocks[b].choices[d->choice[b]].bytes;
    return d->streamed ? (double)(all - NUM_MIN(d->kept[b], all)) : 0;
}

/* The block whose pages block b's products read: a tied head's are the embedding's. */
static int owner_of(const plan_question *q, int b) {
    return q->blocks[b].choices[0].bytes == 0 && b == q->n_block - 1 ? 0 : b;
}

static void add_block(const plan_question *q, const plan_decision *d, int b, device_work *w) {
    const plan_choice *c = &q->blocks[b].choices[d->choice[b]];
    if (q->split->of[b].kind == HOME_IN_PLACE || b == 0) {
        w->cpu_s += plan_block_seconds(q, b, d->choice[b], d->activation[b]);
        w->ram +=
            b ? homes_read_bytes((double)c->bytes, (double)c->chosen_bytes, q->blocks[b].expert_share, 1) : 0;
    } else {
        const double read = read_bytes(q, b, d->choice[b], bytes_of(q, b));
        w->gpu_s += read / q->rates.at[PLACE_GPU].read + launches(q, b);
        w->vram += read;
        w->link += away_for_token(q, b);
        w->cpu_s += is_apart(q, b) ? expert_seconds(q, b, d->choice[b]) : 0;
        w->ram += is_apart(q, b) ? expert_bytes(q, b, d->choice[b], false) : 0;
    }
    const int from = owner_of(q, b);
    if (away(q, b) <= 0 || d->choice[from] < 0)
        return;
    const plan_choice *own = &q->blocks[from].choices[d->choice[from]];
    const double part = streamed_bytes(q, d, from);
    w->packed += part;
    w->disk += part * (d->packed || !own->bytes ? 1 : (double)own->file_bytes / (double)own->bytes);
}

static device_work work_of(const plan_question *q, const plan_decision *d) {
    const double positions = (double)q->n_prompt + (double)q->n_gen / 2;
    const double cache = (double)d->cache->position * positions;
    const cache_parts part = cache_parts_of(q);
    device_work w = {0};
    visits token = visits_of_one_row(q->n_block, 0, q->n_block);
    for (visit v; visits_next(&token, &v);)
        if (d->choice[v.block] >= 0)
            add_block(q, d, v.block, &w);
    const double here = part.in_place + part.attended;
    w.vram += cache * (1 - here);
    w.gpu_s += cache * (1 - here) / q->rates.at[PLACE_GPU].read;
    w.link += cache * part.staged;
    w.ram += cache * here + w.link;
    w.cpu_s += cache * part.in_place / q->rates.at[PLACE_RAM].read +
               cache * part.attended / q->rates.attend[q->device->kv];
    return w;
}

/* ---- a prompt ---- */

static double seconds_of_pass(const plan_question *q, const plan_decision *d, double rows, double done) {
    const plan_rates *r = &q->rates;
    double gpu = 0, link = 0;
    /* A block's visit has all rows of the pass. */
    visits pass = visits_of_one_row(q->n_block, 1, q->n_block);
    for (visit v; visits_next(&pass, &v);) {
        const plan_block_facts *f = &q->blocks[v.block];
        const double macs = f->is_layer ? (double)f->macs : 0;
        if (d->choice[v.block] < 0)
            continue;
        gpu += NUM_MAX(bytes_of(q, v.block) / r->at[PLACE_GPU].read, rows * macs / plan_device_products(r)) +
               launches(q, v.block);
        link += away(q, v.block) / r->at[PLACE_RAM].to[PLACE_GPU];
    }
    gpu += rows * (done + rows / 2) * (double)q->attention_macs / plan_device_attention(r);
    return NUM_MAX(gpu, link) + APART * NUM_MIN(gpu, link);
}

static double first_token(const plan_question *q, const plan_decision *d, double disk_s) {
    const int64_t batch = NUM_MAX(q->n_batch, 1), all = NUM_MAX(q->n_prompt, 1);
    double total = 0;
    for (int64_t done = 0; done < all; done += batch)
        total += NUM_MAX(seconds_of_pass(q, d, (double)NUM_MIN(batch, all - done), (double)done), disk_s);
    return total;
}

/* ---- both ---- */

static const char *bottleneck_of(const plan_prediction *p, const device_work *w, bool packs) {
    const double computing = w->gpu_s + w->cpu_s;
    const double slowest = NUM_MAX(NUM_MAX(computing, p->link_s), NUM_MAX(p->ram_s, p->disk_s));
    if (slowest <= p->disk_s)
        return packs ? "packing" : "disk read";
    if (slowest <= p->link_s)
        return "link";
    if (slowest <= p->ram_s)
        return "memory read";
    return w->cpu_s > w->gpu_s ? "the processor's layers or experts" : "the GPU";
}

static uint64_t vram_of(const plan_question *q) {
    return q->device->driver + q->split->weights + q->split->others;
}

void plan_device_predict(const plan_question *q, const plan_decision *d, plan_prediction *out,
                         const char **binds) {
    const plan_rates *r = &q->rates;
    const device_work w = work_of(q, d);
    const double reading = w.disk / (d->packed ? r->at[PLACE_DISK].to[PLACE_RAM] : r->disk_file);
    const double packing = d->packed ? 0 : w.packed / r->pack;
    out->disk_s = NUM_MAX(reading, packing);
    out->ram_s = w.ram / r->at[PLACE_RAM].read;
    out->link_s = w.link / r->at[PLACE_RAM].to[PLACE_GPU];
    out->gpu_s = w.gpu_s;
    out->compute_s = w.cpu_s;
    const double longest = NUM_MAX(NUM_MAX(w.gpu_s + w.cpu_s, out->link_s), NUM_MAX(out->ram_s, out->disk_s));
    out->tok_s = 1 / NUM_MAX(longest, 1e-12);
    out->ttft_s = first_token(q, d, out->disk_s);
    out->ram_bytes = (uint64_t)w.ram;
    out->disk_bytes = (uint64_t)w.disk;
    out->link_bytes = (uint64_t)w.link;
    out->vram_bytes = (uint64_t)w.vram;
    out->vram_peak = vram_of(q);
    out->guessed = r->guessed || r->vram_guessed;
    *binds = bottleneck_of(out, &w, packing > reading);
}
