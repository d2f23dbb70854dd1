/* homes_device.c - blocks, keys and values of a GPU; see homes.h. */
#include "plan/homes.h"

#include "base/mem.h"
#include "base/num.h"
#include "state/kv_stage.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

double homes_read_bytes(double bytes, double chosen, double share, double n_row) {
    return bytes - (chosen > 0 ? chosen * pow(1 - share, n_row) : 0);
}

/* Seconds of computing n_row rows: one after the other on the GPU, which has n_gpu layers and reads `more`
 * bytes, and on the processor, which has n_here layers. The time of one row's products is part of the rate at
 * which weights are read. */
static double computing(const plan_rates *r, const homes_layer *l, int n_gpu, uint64_t more, int n_here,
                        int64_t n_row) {
    const double bytes = homes_read_bytes((double)l->bytes, (double)l->chosen, l->share, (double)n_row);
    const double read = bytes / r->one_row[l->bits] * (l->two ? r->two_slices : 1);
    const double multiply = (double)(n_row - 1) * (double)l->macs / r->many_rows[l->bits];
    return (n_gpu * bytes + (double)more) / r->at[PLACE_GPU].read + n_here * (read + multiply);
}

/* Seconds of a pass of n_row rows through all layers, if n_streamed come over the link meanwhile. */
static double seconds_of(const plan_rates *r, const homes_layers *of, int n_streamed, int64_t n_row) {
    const double link = n_streamed * ((double)of->each.bytes / r->at[PLACE_RAM].to[PLACE_GPU]);
    return NUM_MAX(computing(r, &of->each, of->n_resident + n_streamed, of->more, of->n - n_streamed, n_row),
                   link);
}

/* Maximum rows for which the processor's layers take no longer than streaming all layers. */
static int64_t rows_in_place(const plan_rates *r, const homes_layers *of, int n_streamed, int64_t max_rows) {
    const double all = seconds_of(r, of, of->n, 1);
    int64_t n = 0;
    while (n_streamed < of->n && n < max_rows && seconds_of(r, of, n_streamed, n + 1) <= all)
        n++;
    return n;
}

void homes_divide(const plan_rates *r, const homes_layers *of, int64_t max_rows, homes_division *out) {
    *out = (homes_division){.seconds = seconds_of(r, of, 0, 1)};
    for (int n = 1; n <= of->n; n++) {
        const double s = seconds_of(r, of, n, 1);
        if (s < out->seconds)
            *out = (homes_division){.n_streamed = n, .seconds = s};
    }
    out->max_rows = rows_in_place(r, of, out->n_streamed, max_rows);
}

/* Number of items before place i when n items are spread evenly over `places` places. */
static int before(int n, int places, int i) {
    return (int)((int64_t)i * n / places);
}

void homes_order(int n_layer, int n_resident, int n_streamed, block_home *out) {
    const int n_not_resident = n_layer - n_resident;
    int at = 0, group = 0;
    for (int i = 0; i < n_not_resident; i++) {
        const bool streamed =
            before(n_streamed, n_not_resident, i + 1) != before(n_streamed, n_not_resident, i);
        out[at++].kind = streamed ? HOME_STREAMED : HOME_IN_PLACE;
        if (!streamed)
            continue;
        for (int n = before(n_resident, n_streamed, group + 1) - before(n_resident, n_streamed, group); n > 0;
             n--)
            out[at++].kind = HOME_RESIDENT;
        group++;
    }
    while (at < n_layer)
        out[at++].kind = HOME_RESIDENT;
}

/* ---- the whole decision ---- */

/* CUDA allocates large memory in pieces of this size. */
enum { PIECE = 2 << 20, LARGE = 1 << 20 };

bool homes_is_for_many(const homes_question *q) {
    return q->many_from > 0 && q->n_sequence >= q->many_from;
}

uint64_t homes_block_bytes(uint64_t bytes) {
    return bytes < LARGE ? bytes : (bytes + HOMES_PAGE + PIECE - 1) / PIECE * PIECE;
}

static uint64_t whole_pages(uint64_t bytes) {
    return (bytes + HOMES_PAGE - 1) / HOMES_PAGE * HOMES_PAGE;
}

static void add_sketch(const homes_question *q, homes_split *s) {
    const uint64_t bytes = homes_block_bytes(q->sketch);
    s->has_sketch = true;
    s->resident += bytes;
    s->weights += bytes;
}

/* All matrices come that have experts. Returns their bytes. */
static uint64_t keep_beside_experts(const homes_question *q, int b, bool *comes) {
    const int first = q->blocks[b].first_matrix;
    const int end = b + 1 < q->n_block ? q->blocks[b + 1].first_matrix : q->n_matrix;
    uint64_t sum = 0;
    for (int i = first; i < end; i++) {
        comes[i] = q->stack[i];
        sum += comes[i] ? q->matrices[i] : 0;
    }
    return sum;
}

/* Keeps matrices of block b of at most `max` bytes in all, the largest first; the others come. Returns the
 * bytes that come. */
static uint64_t keep_some(const homes_question *q, int b, uint64_t max, bool *comes) {
    const int first = q->blocks[b].first_matrix;
    const int end = b + 1 < q->n_block ? q->blocks[b + 1].first_matrix : q->n_matrix;
    uint64_t left = max;
    for (int i = first; i < end; i++)
        comes[i] = true;
    for (int best = first; best >= 0;) {
        best = -1;
        for (int i = first; i < end; i++)
            if (comes[i] && q->matrices[i] <= left && (best < 0 || q->matrices[i] > q->matrices[best]))
                best = i;
        if (best >= 0) {
            comes[best] = false;
            left -= q->matrices[best];
        }
    }
    return q->blocks[b].bytes - NUM_MIN(max - left, q->blocks[b].bytes);
}

/* Resident bytes of block b at most. */
static uint64_t max_kept(const homes_question *q, const homes_split *s, int b) {
    const uint64_t bytes = q->blocks[b].bytes;
    if (s->of[b].kind != HOME_STREAMED)
        return s->of[b].kind == HOME_RESIDENT ? UINT64_MAX : 0;
    if (q->given)
        return bytes - NUM_MIN(q->given[b].away, bytes);
    return b < q->n_block - 1 ? bytes / HOMES_SHARES * (uint64_t)s->share : 0;
}

/* Sums the bytes of weights for the places in s. */
static void count_weights(const homes_question *q, homes_split *s) {
    s->resident = q->fixed;
    s->slot = 0;
    s->n_not_resident = s->n_in_place = s->n_in_part = s->n_apart = 0;
    for (int b = 1; b < q->n_block; b++) {
        const uint64_t max = max_kept(q, s, b);
        s->of[b].away = max == UINT64_MAX ? 0 : q->blocks[b].bytes;
        uint64_t slot = 0, more = 0;
        if (s->of[b].apart) {
            slot = keep_beside_experts(q, b, s->comes);
            s->of[b].away = slot - (uint64_t)s->n_kept * q->blocks[b].expert;
            more = s->n_kept > 0 ? q->blocks[b].kept_more : 0;
        } else if (q->n_matrix)
            slot = s->of[b].away = keep_some(q, b, max, s->comes);
        const uint64_t here = q->blocks[b].bytes - s->of[b].away + more;
        s->n_apart += s->of[b].apart;
        s->n_not_resident += s->of[b].kind != HOME_RESIDENT;
        s->n_in_place += s->of[b].kind == HOME_IN_PLACE;
        s->n_in_part += s->of[b].away > 0 && here > 0;
        s->resident += here || s->of[b].kind == HOME_RESIDENT ? homes_block_bytes(here) : 0;
        s->slot = NUM_MAX(s->slot, q->n_matrix ? slot : s->of[b].away);
    }
    s->weights = s->resident + HOMES_SLOTS * s->slot;
    s->has_sketch = false;
    if (q->sketch && q->needs_sketch && s->of[q->n_block - 1].kind == HOME_RESIDENT)
        add_sketch(q, s);
}

/* Whether the layer can be staged: the GPU computes it. */
static bool may_stage(const homes_question *q, const homes_split *s, int b) {
    return q->stages && b > 0 && s->of[b].kind != HOME_IN_PLACE && q->blocks[b].cache > 0;
}

static int max_staged(const homes_question *q, const homes_split *s) {
    int n = 0;
    for (int b = 0; b < q->n_block; b++)
        n += may_stage(q, s, b);
    return n;
}

/* The same if no layer is computed in place. */
static int n_cache(const homes_question *q) {
    int n = 0;
    for (int b = 1; b < q->n_block && q->stages; b++)
        n += q->blocks[b].cache > 0;
    return n;
}

/* Bytes that a pass of generated rows reads. Sequences have an eighth fewer positions in the mean of their
 * lives than there is memory for: of the last page a half, and of the answer a half. */
typedef struct pass_bytes {
    double weights, kv; /* weights that cross the link; keys and values in host memory */
} pass_bytes;
static pass_bytes bytes_of(const homes_question *q, const homes_split *s) {
    pass_bytes sum = {0, 0};
    for (int b = 1; b < q->n_block; b++) {
        sum.weights += s->of[b].kind == HOME_STREAMED && !s->of[b].apart ? (double)s->of[b].away : 0;
        if (s->of[b].staged)
            sum.kv += 0.875 * (double)(q->n_page * q->blocks[b].cache + q->n_table * q->blocks[b].newest);
    }
    return sum;
}

/* Bytes that the GPU reads beside the layers. */
static uint64_t beside_layers(const homes_question *q) {
    return q->fixed + q->blocks[q->n_block - 1].bytes;
}

/* Seconds for which the GPU computes a pass of generated rows. */
static double gpu_seconds(const homes_question *q, const plan_rates *r, const homes_split *s) {
    return computing(r, &q->layer, q->n_block - 2 - s->n_in_place, beside_layers(q), s->n_in_place, 1);
}

/* Seconds of a pass of generated rows if the processor attends in n of the staged layers. Weights come while
 * the GPU and the processor compute. Keys and values take turns with both: a layer has several times those of
 * the slots to which they come ahead, and the processor waits for the layer's queries (OPT-30B in kv4, H200:
 * 14 of 48 layers took 433 ms, the sum of link and processor; none took 344). Link and processor read the
 * host's memory. */
static double seconds_of_pass(const homes_question *q, const plan_rates *r, const homes_split *s, int n) {
    const pass_bytes all = bytes_of(q, s);
    const double up = r->at[PLACE_RAM].to[PLACE_GPU], n_layer = q->n_block - 2;
    const double here = n > 0 ? all.kv * n / s->n_staged : 0, staged = (all.kv - here) / up;
    const double host = n > 0 ? here / r->attend[q->kv] + n * HOMES_ATTEND_TURN : 0;
    const double ram = r->at[PLACE_RAM].read > 0 ? (all.weights + all.kv) / r->at[PLACE_RAM].read : 0;
    const double others = gpu_seconds(q, r, s) * (n_layer - s->n_staged) / n_layer;
    return NUM_MAX(NUM_MAX(all.weights / up, host + others) + staged, ram);
}

/* Lets the processor attend in as many of the staged layers as makes a pass fastest, or as a plan says,
 * spread evenly. */
static void attend(const homes_question *q, const plan_rates *r, homes_split *s) {
    int best = q->given && q->attends ? NUM_MIN(q->n_attended, s->n_staged) : 0, i = 0;
    for (int n = 1; n <= s->n_staged && q->attends && !q->given; n++)
        best = seconds_of_pass(q, r, s, n) < seconds_of_pass(q, r, s, best) ? n : best;
    s->n_attended = best;
    for (int b = 0; b < q->n_block; b++) {
        s->of[b].attended =
            s->of[b].staged && before(best, s->n_staged, i + 1) != before(best, s->n_staged, i);
        i += s->of[b].staged;
    }
}

/* Stages n layers, spread evenly, so that the link also works while others compute. */
static void stage(const homes_question *q, int n, homes_split *s) {
    const int most = max_staged(q, s);
    int i = 0;
    s->n_staged = n;
    for (int b = 0; b < q->n_block; b++) {
        const bool may = may_stage(q, s, b);
        s->of[b].staged = may && before(n, most, i + 1) != before(n, most, i);
        i += may;
    }
}

/* Bytes of a page on the GPU and in host memory if `away` of its bytes are there. The GPU has a part of every
 * page. */
typedef struct two_parts {
    uint64_t here, there;
} two_parts;
static two_parts parts_of(uint64_t page, uint64_t away) {
    return (two_parts){
        .here = NUM_MAX(page - away / HOMES_PAGE * HOMES_PAGE, NUM_MIN(page, (uint64_t)HOMES_PAGE)),
        .there = whole_pages(away)};
}

/* Sums the bytes of keys and values for the homes in s. */
static void count_caches(const homes_question *q, homes_split *s) {
    uint64_t away = 0, parts = 0, newest = 0;
    s->stage_page = s->stage_newest = 0;
    for (int b = 1; b < q->n_block; b++)
        if (s->of[b].kind == HOME_IN_PLACE || s->of[b].staged) {
            *(q->blocks[b].slides ? &parts : &away) += q->blocks[b].cache;
            newest += q->blocks[b].newest;
            s->stage_page = NUM_MAX(s->stage_page, whole_pages(q->blocks[b].cache));
            s->stage_newest = NUM_MAX(s->stage_newest, whole_pages(q->blocks[b].newest));
        }
    const two_parts page = parts_of(q->page, away), last = parts_of(q->newest, newest);
    const two_parts part = parts_of(q->part, parts); /* in host memory there is one for each page */
    const uint64_t least = away + parts > 0 ? HOMES_PAGE : 0;
    s->host = q->n_page * whole_pages(away + parts) + q->n_table * last.there;
    s->device_kv = q->session - q->n_table * (q->newest - last.here) + q->n_page * NUM_MAX(page.here, least) +
                   q->n_part * part.here;
    s->n_stage_list = q->n_page + 2 * q->n_table; /* an incomplete page of codes has a number */
}

/* Decides the size of the stage: the sequences, or the pages, that fit in its slots. Returns its bytes. */
static uint64_t stage_bytes(const homes_question *q, homes_split *s) {
    const uint64_t most = NUM_MIN((uint64_t)HOMES_STAGE_BYTES, q->capacity / HOMES_STAGE_SHARE);
    const uint64_t each = NUM_MAX(q->n_page_each ? NUM_MIN(q->n_page_each, q->n_page) : q->n_page, 1);
    s->n_stage_page = s->n_stage_newest = 0;
    if (s->stage_page == 0)
        return 0;
    s->n_stage_page = NUM_MAX(NUM_MIN(q->n_page, most / s->stage_page), each);
    if (s->stage_newest > 0) {
        const uint64_t one = kv_stage_slot(s->stage_page, each + 1, s->stage_newest, 1);
        s->n_stage_newest = NUM_MAX(NUM_MIN(q->n_table, most / one), 1);
        s->n_stage_page = s->n_stage_newest * (each + 1);
    }
    return kv_stage_bytes(kv_stage_slot(s->stage_page, s->n_stage_page, s->stage_newest, s->n_stage_newest),
                          s->n_stage_list);
}

static bool fits(const homes_question *q, const plan_rates *r, homes_split *s) {
    count_weights(q, s);
    attend(q, r, s);
    count_caches(q, s);
    s->others = q->activations + s->device_kv + stage_bytes(q, s);
    return s->weights <= q->capacity && s->others <= q->capacity - s->weights;
}

/* Adds the sketch if all blocks are resident and enough memory is left. */
static void add_wanted_sketch(const homes_question *q, homes_split *s) {
    const uint64_t taken = s->weights + s->others;
    if (q->sketch && !s->has_sketch && s->n_not_resident == 0 &&
        homes_block_bytes(q->sketch) <= q->capacity - taken)
        add_sketch(q, s);
}

static void place_embedding(homes_split *s) {
    s->of[0].kind = s->of[1].kind == HOME_IN_PLACE ? HOME_IN_PLACE : HOME_RESIDENT;
}

/* A choice that may fit. */
typedef struct candidate {
    int n_resident;      /* layers */
    bool head;           /* the head is resident */
    int n_staged, share; /* without both, layers may be computed in place */
    bool apart;          /* all layers are resident but the experts of those that can be apart, */
    int n_kept;          /* of which so many are */
} candidate;

static homes_layers layers_of(const homes_question *q, int n_resident) {
    return (homes_layers){q->layer, q->n_block - 2 - n_resident, n_resident, beside_layers(q)};
}

static bool may_be_apart(const homes_question *q, int b) {
    return q->blocks[b].apart && b > 0 && b < q->n_block - 1;
}

/* Divides the blocks by the candidate. True: it fits. */
static bool try_split(const homes_question *q, const plan_rates *r, candidate c, homes_split *s) {
    const int n_all = q->n_block - 2, n_layer = n_all - c.n_resident;
    const homes_layers layers = layers_of(q, c.n_resident);
    homes_division chosen = {0};
    if (n_layer > 0 && !q->one_cache && c.n_staged == 0 && c.share == 0 && !c.apart)
        homes_divide(r, &layers, q->max_rows, &chosen);
    s->max_rows = chosen.max_rows;
    s->share = c.share;
    const int n_here = chosen.max_rows >= NUM_MAX(q->n_sequence, 1) ? n_layer - chosen.n_streamed : 0;
    homes_order(n_all, c.n_resident, n_layer - n_here, s->of + 1);
    s->n_kept = c.apart ? c.n_kept : 0;
    for (int b = 0, n = 0; b < q->n_block; b++) {
        s->of[b].apart = c.apart && may_be_apart(q, b) && (q->n_cpu_experts == 0 || n++ < q->n_cpu_experts);
        if (c.apart)
            s->of[b].kind = s->of[b].apart ? HOME_STREAMED : HOME_RESIDENT;
    }
    s->of[q->n_block - 1].kind = c.head ? HOME_RESIDENT : HOME_STREAMED;
    place_embedding(s);
    stage(q, c.n_staged, s);
    return fits(q, r, s);
}

static int max_resident(const homes_question *q) {
    const int n_layer = q->n_block - 2;
    return q->max_layers ? NUM_MIN(q->max_layers, n_layer) : n_layer;
}

/* Finds the maximum number of resident layers by bisection, for this head and share. All layers are tried
 * first, because then no slots are needed. */
static bool fit_layers(const homes_question *q, const plan_rates *r, candidate *c, homes_split *s) {
    int low = 0, high = max_resident(q);
    c->n_resident = high;
    if (try_split(q, r, *c, s))
        return true;
    while (low < high) {
        c->n_resident = (low + high + 1) / 2;
        if (try_split(q, r, *c, s))
            low = c->n_resident;
        else
            high = c->n_resident - 1;
    }
    c->n_resident = low;
    return try_split(q, r, *c, s);
}

/* Experts that every layer with experts has. */
static int n_expert_of(const homes_question *q) {
    int n = 0;
    for (int b = 1; b < q->n_block - 1; b++)
        if (may_be_apart(q, b))
            n = n == 0 ? q->blocks[b].n_expert : NUM_MIN(n, q->blocks[b].n_expert);
    return n;
}

double homes_hit(const homes_question *q, int n_kept) {
    return n_kept == 0 ? 0 : q->hits ? q->hits[n_kept] : (double)n_kept / NUM_MAX(n_expert_of(q), 1);
}

/* Seconds of a pass of n_row generated rows of which the processor computes experts. */
static double seconds_apart(const homes_question *q, const plan_rates *r, const homes_split *s,
                            int64_t n_row) {
    const homes_layer *l = &q->layer;
    const double hit = homes_hit(q, s->n_kept);
    const double chosen = homes_read_bytes((double)l->chosen, (double)l->chosen, l->share, (double)n_row);
    const double part = (double)l->chosen / (double)NUM_MAX(l->bytes, 1);
    const double read = (1 - hit) * chosen / r->one_row[l->bits] * (l->two ? r->two_slices : 1);
    const double multiply = (1 - hit) * part * (double)(n_row - 1) * (double)l->macs / r->many_rows[l->bits];
    const double bytes = (double)(l->bytes - l->chosen) + hit * chosen;
    return ((q->n_block - 2) * bytes + (double)beside_layers(q)) / r->at[PLACE_GPU].read +
           s->n_apart * (read + multiply + HOMES_APART_TURN);
}

/* Seconds of a pass of generated rows: the link works while the GPU and the processor compute. */
static double pass_seconds(const homes_question *q, const plan_rates *r, const homes_split *s) {
    if (s->n_apart > 0)
        return seconds_apart(q, r, s, 1);
    return NUM_MAX(seconds_of_pass(q, r, s, s->n_attended), gpu_seconds(q, r, s));
}

/* Finds the head and the share with the shortest pass. A share that shortens it by less than a 64th is not
 * worth more copies. */
static bool fit_weights(const homes_question *q, const plan_rates *r, homes_split *s) {
    const int n_share = q->max_layers || q->n_matrix == 0 ? 1 : HOMES_SHARES;
    candidate best = {0};
    double least = 0;
    bool found = false;
    for (int head = 1; head >= 0 && !found; head--)
        for (int share = 0; share < n_share; share++) {
            candidate c = {.head = head, .share = share};
            if (!fit_layers(q, r, &c, s))
                continue;
            const double seconds = pass_seconds(q, r, s);
            if (found && !(seconds < least - least / 64))
                continue;
            found = true;
            best = c;
            least = seconds;
        }
    return found && try_split(q, r, best, s);
}

/* Tries to stage as few layers as fit. */
static bool fit_caches(const homes_question *q, const plan_rates *r, candidate *c, homes_split *s) {
    int low = 1, high = n_cache(q);
    c->n_staged = high;
    if (high == 0 || !try_split(q, r, *c, s))
        return false;
    while (low < high) {
        c->n_staged = (low + high) / 2;
        if (try_split(q, r, *c, s))
            high = c->n_staged;
        else
            low = c->n_staged + 1;
    }
    c->n_staged = low;
    return try_split(q, r, *c, s);
}

/* Finds the split with staged layers in which a pass takes the fewest seconds, if they are fewer than `than`;
 * of equal ones that with the most resident layers. */
static bool fit_staged(const homes_question *q, const plan_rates *r, double than, homes_split *s) {
    candidate best = {.n_resident = -1};
    if (!q->stages)
        return false;
    for (int head = 1; head >= 0; head--)
        for (int n = max_resident(q); n >= 0; n--) {
            candidate c = {.n_resident = n, .head = head};
            if (!fit_caches(q, r, &c, s) || pass_seconds(q, r, s) >= than)
                continue;
            than = pass_seconds(q, r, s);
            best = c;
        }
    return best.n_resident >= 0 && try_split(q, r, best, s);
}

/* Finds the most resident experts of each layer with which all else of the layers fits. */
static bool fit_apart(const homes_question *q, const plan_rates *r, homes_split *s) {
    candidate c = {.head = true, .apart = true};
    int low = 0, high = n_expert_of(q) - 1;
    if (high < 0 || (q->max_layers && q->max_layers < q->n_block - 2) || !try_split(q, r, c, s))
        return false;
    while (low < high) {
        c.n_kept = (low + high + 1) / 2;
        if (try_split(q, r, c, s))
            low = c.n_kept;
        else
            high = c.n_kept - 1;
    }
    c.n_kept = low;
    return try_split(q, r, c, s);
}

/* The fastest split without layers that are staged. The processor computes experts only if it is faster, for
 * all sequences that decode together, than streaming layers that do not fit, or computing some of them in
 * place. */
static bool fit_weights_or_apart(const homes_question *q, const plan_rates *r, homes_split *s) {
    const int64_t n_row = NUM_MAX(q->n_sequence, 1);
    const bool fit = fit_weights(q, r, s);
    if (fit && s->n_not_resident == 0)
        return true;
    const double seconds = fit ? pass_seconds(q, r, s) : INFINITY;
    const double link =
        fit && s->n_in_place == 0 ? bytes_of(q, s).weights / r->at[PLACE_RAM].to[PLACE_GPU] : INFINITY;
    if (fit_apart(q, r, s) && seconds_apart(q, r, s, 1) < seconds && seconds_apart(q, r, s, n_row) < link)
        return true;
    return fit && fit_weights(q, r, s);
}

static bool fit_all(const homes_question *q, const plan_rates *r, homes_split *s) {
    const bool fit = fit_weights_or_apart(q, r, s);
    const bool may_gain = q->n_sequence > 1 && s->n_not_resident > 0 && s->n_in_place == 0 && s->n_apart == 0;
    if (fit && !may_gain)
        return true;
    return fit_staged(q, r, fit ? pass_seconds(q, r, s) : INFINITY, s) ||
           (fit && fit_weights_or_apart(q, r, s));
}

static nib_status refuse(const homes_question *q, const homes_split *s, nib_error *err) {
    char need[32], weights[32], others[32], have[32], cap[32], would[64] = "";
    if (q->capped)
        snprintf(would, sizeof would, "; --vram %s is the smallest that works",
                 num_format_cap(q->driver + s->weights + s->others, cap));
    return nib_fail(err, NIB_E_NOFIT,
                    "VRAM: needs at least %s: %s for weights (%s%s) and %s "
                    "for activations, keys and values; %s has %s free%s",
                    num_format_size(s->weights + s->others, need), num_format_size(s->weights, weights),
                    q->given            ? "those of the plan"
                    : s->n_not_resident ? "those that are always resident"
                                        : "all",
                    s->n_not_resident ? ", and slots for two blocks" : "", num_format_size(s->others, others),
                    q->capacity_of, num_format_size(q->capacity, have), would);
}

/* The split with the smallest memory: either nothing that can be streamed is resident, or everything is. */
static void take_smallest(const homes_question *q, const plan_rates *r, homes_split *s) {
    const int n = n_cache(q), most = max_resident(q);
    const candidate tried[] = {{.head = false},
                               {.head = true},
                               {.n_resident = most, .head = true},
                               {.n_staged = n},
                               {.head = true, .n_staged = n},
                               {.n_resident = most, .head = true, .n_staged = n}};
    uint64_t sums[NUM_COUNT(tried)];
    size_t best = 0;
    for (size_t i = 0; i < NUM_COUNT(tried); i++) {
        try_split(q, r, tried[i], s);
        sums[i] = s->weights + s->others;
        best = sums[i] < sums[best] ? i : best;
    }
    try_split(q, r, tried[best], s);
}

/* Follows a plan's places. */
static nib_status follow(const homes_question *q, const plan_rates *r, homes_split *s, nib_error *err) {
    int n_resident = 0;
    memcpy(s->of, q->given, (size_t)q->n_block * sizeof *s->of);
    s->n_kept = q->n_kept;
    place_embedding(s);
    bool fitting = false;
    for (int n = 0; !fitting && n <= max_staged(q, s); n++) {
        stage(q, n, s);
        fitting = fits(q, r, s);
    }
    const int n_layer = q->n_block - 2, n_head = s->of[q->n_block - 1].kind != HOME_RESIDENT;
    n_resident = n_layer - (s->n_not_resident - n_head);
    if (s->of[q->n_block - 1].kind == HOME_IN_PLACE)
        return nib_fail(err, NIB_E_USAGE, "plan: the output head must be computed on the GPU");
    if (s->n_in_place && q->one_cache)
        return nib_fail(err, NIB_E_USAGE,
                        "plan: with --kv kv8 or kv4 no layer can be computed in place by the processor");
    if (s->n_in_place && s->n_apart)
        return nib_fail(err, NIB_E_USAGE,
                        "plan: expected layers computed in place, or experts computed by the processor, "
                        "found both");
    if (q->max_layers && n_resident + s->n_apart > q->max_layers)
        return nib_fail(err, NIB_E_USAGE, "plan: %d layers are on the GPU, but --gpu-layers allows %d",
                        n_resident + s->n_apart, q->max_layers);
    if (!fitting)
        return refuse(q, s, err);
    const homes_layers layers = layers_of(q, n_resident);
    if (s->n_in_place)
        s->max_rows = NUM_MAX(rows_in_place(r, &layers, layers.n - s->n_in_place, q->max_rows), 1);
    return NIB_OK;
}

/* The embedding's tables get only memory that nothing else needs, because a pass reads only a few rows of
 * them. */
static void place_tables(const homes_question *q, homes_split *s) {
    const uint64_t bytes = homes_block_bytes(q->blocks[0].bytes);
    s->tables = bytes > 0 && s->n_not_resident == 0 && bytes <= q->capacity - s->weights - s->others;
    s->resident += s->tables ? bytes : 0;
    s->weights += s->tables ? bytes : 0;
}

static nib_status split(const homes_question *q, const plan_rates *r, homes_split *s, nib_error *err) {
    const candidate asked = {.head = true, .apart = true};
    if (q->given)
        return follow(q, r, s, err);
    if (q->n_cpu_experts > 0 && n_expert_of(q) > 0 && max_resident(q) < q->n_block - 2)
        return nib_fail(
            err, NIB_E_USAGE,
            "the processor computes only experts (--cpu-experts) if --gpu-layers allows all %d layers on "
            "the GPU, found %d",
            q->n_block - 2, q->max_layers);
    if (q->n_cpu_experts > 0 && n_expert_of(q) > 0)
        return try_split(q, r, asked, s) ? NIB_OK : refuse(q, s, err);
    if (fit_all(q, r, s))
        return NIB_OK;
    take_smallest(q, r, s);
    return refuse(q, s, err);
}

nib_status homes_split_make(const homes_question *q, const plan_rates *r, homes_split *s, nib_error *err) {
    *s = (homes_split){.n_block = q->n_block};
    if (q->n_block < 3)
        return nib_fail(err, NIB_E_MODEL, "expected a model with layers, found none");
    s->of = mem_calloc((size_t)q->n_block, sizeof *s->of);
    s->comes = mem_calloc((size_t)q->n_matrix + 1, sizeof *s->comes);
    if (!s->of || !s->comes)
        return nib_fail_nomem(err, (size_t)q->n_block * sizeof *s->of, "the blocks' homes");
    NIB_TRY(split(q, r, s, err));
    add_wanted_sketch(q, s);
    place_tables(q, s);
    return NIB_OK;
}

void homes_split_clear(homes_split *s) {
    mem_free(s->of);
    mem_free(s->comes);
    memset(s, 0, sizeof *s);
}

void homes_question_clear(homes_question *q) {
    mem_free(q->blocks);
    mem_free(q->given);
    mem_free(q->matrices);
    mem_free(q->stack);
    mem_free(q->hits);
    memset(q, 0, sizeof *q);
}

uint64_t homes_all_resident(const homes_question *q) {
    uint64_t sum =
        q->driver + q->fixed + q->activations + q->session + q->n_page * q->page + q->n_part * q->part;
    for (int b = 1; b < q->n_block; b++)
        sum += homes_block_bytes(q->blocks[b].bytes);
    return sum;
}
