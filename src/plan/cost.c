/* cost.c - the cost model: seconds and memory of a token and of a prompt; docs/budget.md has the formulas. */
#include "plan/planner.h"

#include "base/num.h"
#include "plan/homes.h"
#include "weights/visit_pages.h"

#include <string.h>

/* ---- time ---- */

static double slices(const plan_question *q, int activation) {
    return activation == 16 ? q->rates.two_slices : 1;
}

/* Additional seconds of products for the minima of `bytes` of weights; measured with 4 bits. */
static double asym_seconds(const plan_rates *r, double bytes) {
    return bytes * (NUM_MAX(r->asym, 1) - 1) / r->one_row[4];
}

/* Of `bytes` of a block's pages, those that n_row rows read, if each chooses its experts by chance. The
 * experts' pages are the first to be missing in memory. */
static double bytes_read(const plan_block_facts *f, const plan_choice *c, double bytes, double n_row) {
    const double chosen = NUM_MIN(bytes, (double)c->chosen_bytes);
    return homes_read_bytes(bytes, chosen, f->expert_share, n_row);
}

double plan_block_seconds(const plan_question *q, int b, int choice, int activation) {
    const plan_block_facts *f = &q->blocks[b];
    const plan_choice *c = &f->choices[choice];
    if (q->split && (b == 0 || plan_is_on_gpu(q, b)))
        return plan_device_block_seconds(q, b, choice);
    const double bytes = bytes_read(f, c, (double)c->bytes, 1);
    const double kernel = bytes / q->rates.one_row[c->bits] * (c->bits ? slices(q, activation) : 1);
    return NUM_MAX(kernel, bytes / q->rates.at[PLACE_RAM].read) +
           asym_seconds(&q->rates, (double)c->asym_bytes) + (f->n_op + c->more_op) * q->rates.op_s;
}

static double attention_seconds(const plan_question *q, const plan_cache *cache, double n_position) {
    const double moved = (double)cache->position * n_position / q->rates.at[PLACE_RAM].read;
    return NUM_MAX(moved, (double)q->attention_macs * n_position / q->rates.many_rows[0]);
}

double plan_fixed_seconds(const plan_question *q, const plan_cache *cache, bool streamed) {
    const plan_rates *r = &q->rates;
    const double middle = (double)q->n_prompt + (double)q->n_gen / 2;
    const double sketch =
        (double)q->sketch_bytes / NUM_MIN(r->one_row[q->sketch_bits], r->at[PLACE_RAM].read);
    return attention_seconds(q, cache, middle) + sketch +
           (streamed ? (q->row_waits + q->best_waits) * r->disk_wait : 0);
}

/* Seconds of the reader thread's own work for each byte of a read: waking up, packing, and the next request.
 */
static double turn_seconds(const plan_question *q, bool packed) {
    const uint64_t size = packed ? q->need.max_page : q->need.part;
    return size ? q->rates.disk_turn / (double)size : 0;
}

double plan_disk_seconds(const plan_question *q, bool packed) {
    const plan_rates *r = &q->rates;
    return packed ? 1 / r->at[PLACE_DISK].to[PLACE_RAM] + turn_seconds(q, true)
                  : NUM_MAX(1 / r->disk_file + turn_seconds(q, false), 1 / r->pack);
}

double plan_stolen_seconds(const plan_rates *r, bool packed) {
    /* the reader thread packs; if every core computes, it takes its share of them */
    return packed || r->n_thread < r->n_core ? 0 : 1 / r->pack / r->n_core;
}

/* ---- passes of a prompt ---- */

/* The work of one pass. */
typedef struct pass_cost {
    double compute_s, bytes; /* bytes: packed bytes that are streamed */
} pass_cost;

/* A pass of a prompt, which represents `times` passes. */
typedef struct prompt_pass {
    int64_t n_row, n_logits;
    double done; /* positions that are in the cache before it */
    double times;
} prompt_pass;

/* The visits of a pass with the rows of one sequence, of which only the last may have logits. */
static visits prompt_visits(const plan_question *q, const plan_decision *d, const segment *rows) {
    const int64_t n_cell = d->streamed ? q->n_cell_streamed : q->n_cell;
    return (visits){.next = visits_by_block,
                    .n_block = q->n_block,
                    .end = q->n_block,
                    .segments = rows,
                    .n_segment = 1,
                    .n_cell = n_cell ? n_cell : rows->n_row,
                    .n_head = 1,
                    .whole = d->streamed};
}

/* Seconds of a visit's rows in a pass; `done`: positions that are in the cache before the pass. */
static double visit_seconds(const plan_question *q, const plan_decision *d, const visit *v, double done) {
    const plan_block_facts *f = &q->blocks[v->block];
    const int choice = d->choice[v->block], activation = d->activation[v->block];
    const double rows = (double)v->n_row, one = plan_block_seconds(q, v->block, choice, activation);
    if (!f->is_layer)
        return one;
    const double macs = (double)(v->cache_only ? f->cache_macs : f->macs);
    const double many = rows * macs / q->rates.many_rows[f->choices[choice].bits] * slices(q, activation);
    const double positions = v->cache_only ? 0 : rows * (done + (double)v->row + rows / 2);
    return NUM_MAX(one, many) +
           positions * (double)q->attention_macs / (q->n_block - 2) / q->rates.many_rows[0];
}

/* The bytes of a block that a visit of n_row rows reads from disk. */
static double streamed_bytes(const plan_question *q, const plan_decision *d, int b, double n_row) {
    const plan_choice *c = &q->blocks[b].choices[d->choice[b]];
    const double missing = (double)(c->bytes - NUM_MIN(d->kept[b], c->bytes));
    return d->streamed ? bytes_read(&q->blocks[b], c, missing, n_row) : 0;
}

/* The part of `bytes` that a consecutive visit of the same block reads again. */
static double bytes_again(const plan_question *q, double bytes) {
    const double page = (double)q->need.max_page;
    const int n = page > 0 ? (int)NUM_MIN(bytes / page + 1, 1e9) : 0;
    return n ? bytes * (n - visit_pages_staying(n, q->need.n_slot)) / n : 0;
}

/* Adds `times` times the computing seconds of each block to seconds[n_block]; NULL: not wanted. */
static pass_cost cost_of_pass(const plan_question *q, const plan_decision *d, const prompt_pass *pass,
                              double *seconds) {
    const segment rows = {.n_row = pass->n_row, .head_row = pass->n_row - pass->n_logits};
    visits list = prompt_visits(q, d, &rows);
    pass_cost sum = {0};
    bool again = false;
    for (visit v; visits_next(&list, &v); again = v.again) {
        if (d->choice[v.block] < 0 || (again && !q->blocks[v.block].is_layer))
            continue;
        const double bytes = streamed_bytes(q, d, v.block, (double)v.n_row),
                     computing = visit_seconds(q, d, &v, pass->done);
        sum.compute_s += computing;
        sum.bytes += again ? bytes_again(q, bytes) : bytes;
        if (seconds)
            seconds[v.block] += computing * pass->times;
    }
    return sum;
}

enum { TRIED = 64 }; /* further passes differ only in attention */

/* Gives pass i of those that are computed. False: there are no more. */
static bool prompt_pass_at(const plan_question *q, const plan_decision *d, int64_t i, prompt_pass *out) {
    const int64_t rows = d->streamed && q->n_batch_streamed ? q->n_batch_streamed : q->n_batch;
    const int64_t batch = NUM_MAX(rows, 1), all = NUM_MAX(q->n_prompt, 1), n_more = (all - 1) / batch,
                  n_tried = NUM_MIN(n_more, (int64_t)TRIED);
    const bool last = i == n_tried; /* it gives logits */
    const double times = last ? 1 : (double)n_more / (double)n_tried;
    *out = (prompt_pass){last ? all - n_more * batch : batch, last,
                         (double)(last ? n_more : i) * times * (double)batch, times};
    return i <= n_tried;
}

static double all_streamed_bytes(const plan_question *q, const plan_decision *d) {
    double sum = 0;
    for (int b = 0; b < q->n_block; b++)
        sum += d->choice[b] < 0 ? 0 : streamed_bytes(q, d, b, 1);
    return sum;
}

/* Seconds to the first token. disk_s, stolen_s: of a pass that reads each page once. */
static double first_token(const plan_question *q, const plan_decision *d, double disk_s, double stolen_s) {
    const double once = all_streamed_bytes(q, d);
    double total = 0;
    prompt_pass pass;
    for (int64_t i = 0; prompt_pass_at(q, d, i, &pass); i++) {
        const pass_cost c = cost_of_pass(q, d, &pass, NULL);
        const double reads = once > 0 ? c.bytes / once : 0;
        total += NUM_MAX(c.compute_s + reads * stolen_s, reads * disk_s) * pass.times;
    }
    return total;
}

double plan_prompt_seconds(const plan_question *q, const plan_decision *d, double *seconds) {
    const double once = all_streamed_bytes(q, d);
    double reads = 0;
    prompt_pass pass;
    memset(seconds, 0, (size_t)q->n_block * sizeof *seconds);
    for (int64_t i = 0; prompt_pass_at(q, d, i, &pass); i++) {
        const pass_cost c = cost_of_pass(q, d, &pass, q->split ? NULL : seconds);
        reads += once > 0 ? c.bytes / once * pass.times : 0;
    }
    for (int b = 0; q->split && b < q->n_block; b++)
        seconds[b] = plan_device_prompt_seconds(q, b);
    return reads;
}

/* ---- memory ---- */

uint64_t plan_ram_beside(const plan_question *q, const plan_cache *cache, bool streamed, bool packed,
                         uint64_t bytes) {
    const pager_need whole = {.image = q->need.vectors + bytes, .staging = q->need.staging};
    const uint64_t session = q->session + q->sampling + cache->bytes;
    uint64_t total = q->need.tables + q->spare;
    for (int i = 0; i < NIB_N_OWNER; i++)
        total += q->held[i];
    return streamed ? total + q->more_rows + homes_min(&q->need, session) + (packed ? q->need.sums : 0)
                    : total + homes_whole(&whole, session);
}

static void predict_memory(const plan_question *q, const plan_decision *d, plan_prediction *out) {
    uint64_t weights = q->need.vectors, image = weights, sum = 0;
    for (int b = 0; b < q->n_block; b++) {
        if (d->choice[b] < 0)
            continue;
        const plan_choice *c = &q->blocks[b].choices[d->choice[b]];
        weights += !d->streamed ? c->bytes + c->table_bytes : plan_is_resident_on_gpu(q, b) ? 0 : d->kept[b];
        image += c->bytes + c->table_bytes;
    }
    memcpy(out->owner, q->touched, sizeof out->owner);
    out->owner[NIB_OWNER_WEIGHTS] += weights;
    out->owner[NIB_OWNER_KV] += d->cache->touched;
    const uint64_t more = d->streamed ? q->more_touched : 0;
    out->owner[NIB_OWNER_ACTIVATIONS] += q->session + more;
    out->owner[NIB_OWNER_TABLES] += q->need.tables + (d->streamed && d->packed ? q->need.sums : 0);
    /* no sessions exist while loading, so staging may exceed all later memory */
    const uint64_t later = q->session + d->cache->touched + q->touched[NIB_OWNER_ACTIVATIONS] + more;
    const uint64_t running = d->streamed ? q->need.ring + q->need.row : 0;
    const uint64_t loading = d->streamed ? q->need.stream_staging : q->need.staging;
    out->owner[NIB_OWNER_STAGING] += loading > running + later ? loading - later : running;
    for (int i = 0; i < NIB_N_OWNER; i++)
        sum += out->owner[i];
    out->ram_peak = sum;
    out->disk_peak = (d->packed ? image : 0) + d->cache->on_disk;
}

/* ---- both ---- */

void plan_work_of(const plan_question *q, const plan_decision *d, learned_work *out) {
    const double middle = (double)q->n_prompt + (double)q->n_gen / 2;
    visits token = visits_of_one_row(q->n_block, 0, q->n_block);
    memset(out, 0, sizeof *out);
    for (visit v; visits_next(&token, &v);) {
        const int b = v.block;
        const plan_block_facts *f = &q->blocks[b];
        if (d->choice[b] < 0)
            continue;
        const plan_choice *c = &f->choices[d->choice[b]];
        const double part = c->bytes ? streamed_bytes(q, d, b, 1) / (double)c->bytes : 0;
        out->bytes[d->activation[b] == 16][c->bits] += bytes_read(f, c, (double)c->bytes, 1);
        out->n_op += f->n_op + c->more_op;
        out->asym_bytes += (double)c->asym_bytes;
        out->pack_bytes += d->packed ? 0 : part * (double)c->bytes;
        out->disk_bytes += part * (double)(d->packed ? c->bytes : c->file_bytes);
    }
    out->cache_bytes = (double)d->cache->position * middle;
    out->kv_bytes = (double)d->cache->position_on_disk * middle;
    out->cache_macs = (double)q->attention_macs * middle;
    out->bytes[0][q->sketch_bits] += (double)q->sketch_bytes;
    out->n_wait = d->streamed ? q->row_waits + q->best_waits : 0;
    out->read_bytes = d->streamed ? (double)(d->packed ? q->need.max_page : q->need.part) : 0;
}

static double work_read(const learned_work *w) {
    double sum = w->cache_bytes;
    for (int i = 0; i < LEARNED_BITS; i++)
        sum += w->bytes[0][i] + w->bytes[1][i];
    return sum;
}

static double work_compute(const plan_rates *r, const learned_work *w, bool packed) {
    double s = w->n_op * r->op_s + asym_seconds(r, w->asym_bytes) +
               NUM_MAX(w->cache_bytes / r->at[PLACE_RAM].read, w->cache_macs / r->many_rows[0]);
    for (int sixteen = 0; sixteen < 2; sixteen++)
        for (int bits = 0; bits < LEARNED_BITS; bits++) {
            const double slices = sixteen && bits ? r->two_slices : 1;
            s += w->bytes[sixteen][bits] * NUM_MAX(slices / r->one_row[bits], 1 / r->at[PLACE_RAM].read);
        }
    return s + w->n_wait * r->disk_wait + w->pack_bytes * plan_stolen_seconds(r, packed);
}

static double work_reading(const plan_rates *r, const learned_work *w, bool packed) {
    const double kv_s = w->kv_bytes / r->at[PLACE_DISK].to[PLACE_RAM];
    if (w->read_bytes <= 0)
        return kv_s + w->disk_bytes / (packed ? r->at[PLACE_DISK].to[PLACE_RAM] : r->disk_file);
    const double bytes_s = r->n_disk ? plan_disk_rate(r, w->read_bytes)
                           : packed  ? r->at[PLACE_DISK].to[PLACE_RAM]
                                     : r->disk_file;
    return kv_s + w->disk_bytes * (1 / bytes_s + r->disk_turn / w->read_bytes);
}

/* Reads continue while arrived pages are packed. */
double plan_work_seconds(const plan_rates *r, const learned_work *w, bool packed) {
    const double disk = PLAN_BY_HALVES * NUM_MAX(work_reading(r, w, packed), w->pack_bytes / r->pack),
                 compute = work_compute(r, w, packed);
    return NUM_MAX(disk, compute) + PLAN_APART * NUM_MIN(disk, compute);
}

/* The loss of the left-out layers: the joint loss if they are the first of the measured order, else the sum
 * of single losses. Negative: unknown. */
static double left_out_loss(const plan_question *q, const plan_decision *d) {
    double together = 0, alone = 0;
    int n = 0, end = 0;
    for (int b = 0; b < q->n_block; b++) {
        const plan_block_facts *f = &q->blocks[b];
        if (d->choice[b] >= 0)
            continue;
        n++;
        if (f->place + 1 > end) {
            end = f->place + 1;
            together = f->kl_fewer;
        }
        alone = alone < 0 || f->kl_left_out < 0 ? -1 : alone + f->kl_left_out;
    }
    return n && n == end ? together : alone;
}

double plan_activation_loss(const plan_block_facts *f, int activation) {
    const bool four = activation == 4 || activation == NIB_ACT_AX; /* of ax it is an upper bound */
    return activation == 8 ? NUM_MAX(f->kl_a8, 0) : four ? NUM_MAX(f->kl_a4, 0) : 0;
}

/* The summed loss of the blocks; negative: unknown. */
static double predict_loss(const plan_question *q, const plan_decision *d) {
    double loss = left_out_loss(q, d);
    for (int b = 0; b < q->n_block && loss >= 0; b++) {
        const plan_block_facts *f = &q->blocks[b];
        const bool left_out = d->choice[b] < 0;
        const double kl = left_out ? 0 : f->choices[d->choice[b]].kl;
        loss = kl < 0 ? -1 : loss + kl;
        if (loss >= 0 && !left_out)
            loss += plan_activation_loss(f, d->activation[b]);
    }
    return loss;
}

double plan_stated_loss(const plan_question *q, const plan_decision *d, double loss) {
    for (int b = 0; b < q->n_block; b++) {
        const plan_block_facts *f = &q->blocks[b];
        const int bits = d->activation[b];
        if (d->choice[b] >= 0 && f->choices[d->choice[b]].bits > 0 &&
            ((bits == 8 && f->kl_a8 < 0) || ((bits == 4 || bits == NIB_ACT_AX) && f->kl_a4 < 0)))
            return -1;
    }
    return loss;
}

double plan_run_seconds(const plan_question *q, const plan_prediction *p) {
    return p->ttft_s + (double)q->n_gen / p->tok_s;
}

void plan_predict(const plan_question *q, const plan_decision *d, plan_prediction *out, const char **binds) {
    const plan_rates *r = &q->rates;
    learned_work w;
    memset(out, 0, sizeof *out);
    out->quality = predict_loss(q, d);
    predict_memory(q, d, out);
    if (q->split) {
        plan_device_predict(q, d, out, binds);
        return;
    }
    plan_work_of(q, d, &w);
    const double reading = work_reading(r, &w, d->packed), packing = w.pack_bytes / r->pack;
    out->disk_s = NUM_MAX(reading, packing);
    out->ram_s = work_read(&w) / r->at[PLACE_RAM].read;
    out->compute_s = work_compute(r, &w, d->packed);
    out->tok_s = 1 / NUM_MAX(plan_work_seconds(r, &w, d->packed), 1e-12);
    out->ttft_s = first_token(q, d, out->disk_s, w.pack_bytes * plan_stolen_seconds(r, d->packed));
    out->ram_bytes = (uint64_t)work_read(&w);
    out->disk_bytes = (uint64_t)w.disk_bytes;
    out->kv_disk_bytes = (uint64_t)w.kv_bytes;
    out->guessed = r->guessed;
    *binds = out->disk_s > out->compute_s        ? (packing > reading ? "packing" : "disk read")
             : out->ram_s > 0.8 * out->compute_s ? "memory read"
                                                 : "compute";
}
