/* bench_pager.c - the clairvoyant pager beside LRU at the same cap (MCAP, section 3.3, tables 5 and 14).
 *
 *     build/bench/bench_pager MODEL PROFILE.json [cap ...]
 *
 * A cap is bytes (64M), or a share of the model's size (0.5); PROFILE is the file that nibble profile MODEL
 * stores. For each cap an engine decodes, and its counters give the resident bytes, the size of the ring, and
 * the bytes that a token read. The same capacity is then given to other policies, which are simulated over
 * the true pages of a token in their true order and sizes, from an empty start: LRU over pages, LRU over
 * whole blocks (the paper's unit), LRU among the layers with the lowest score, and Belady's choice. Hits are
 * the share of a token's bytes that is not read.
 *
 * If LRU misses every page, a pager without resident pages reads the same bytes in the same order. So a
 * second engine follows the same plan with nothing resident, and its tokens a second are LRU's with real
 * reads. This favours LRU, since that engine still prefetches. */
#include "quantile.h"
#include "support/page_policy.h"
#include "base/file.h"
#include "base/mem.h"
#include "base/num.h"
#include "base/thread.h"
#include "hub/find.h"
#include "model/page_layout.h"
#include "nib.h"
#include "profile/importance.h"
#include "weights/visit_pages.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { N_CTX = 256, N_TOKEN = 48, N_ROUND = 5, N_PASS = 64, SKIP = 32 };

static char folder[] = "/tmp/bench-pager-XXXXXX"; /* scratch */

static void die(const char *what) {
    fprintf(stderr, "bench_pager: %s\n", what);
    exit(1);
}

/* ---- simulated ---- */

typedef struct world {
    model *m;
    layout *l;
    const page_layout *pages;
    double *score;   /* of each page */
    uint64_t *bytes; /* of each page */
    int *uses;       /* [n_use]: pages in the order of a pass with one row */
    int n_use;
    uint64_t *block_bytes; /* of the pages that a block's products use */
    double *block_score;
    int *blocks; /* in the order of a pass */
    int n_block; /* that use pages */
} world;

/* Embedding and output head are no layers. They are evicted first: one that is larger than the capacity would
 * evict every layer and itself. */
static double score_of(const importance *p, int b) {
    return b >= 1 && b <= p->n_layer ? p->score[b - 1] : -1;
}

/* Lists the pages and the blocks that a pass uses, as the pager would read them if nothing were resident. */
static void list_uses(world *w, const importance *p) {
    const page_layout *l = w->pages;
    const visit_pages all = {.pages = l->uses, .first = l->first_use};
    const visits pass = visits_of_one_row(l->n_block, 0, l->n_block);
    int before = -1;
    for (page_cursor c = page_cursor_of(&all, &pass); !c.ended; page_cursor_step(&all, &c)) {
        const int page = all.pages[c.i], b = c.at.block;
        w->uses[w->n_use++] = page;
        if (b != before) {
            w->block_score[w->n_block] = score_of(p, b);
            w->blocks[w->n_block] = w->n_block;
            w->n_block++;
        }
        w->block_bytes[w->n_block - 1] += l->pages[page].bytes;
        before = b;
    }
}

static void open_world(world *w, const char *path, const char *profile) {
    nib_error err;
    importance p = {0};
    if (model_open(path, NULL, &w->m, &err) || layout_make(w->m, &(layout_choice){0}, &w->l, &err) ||
        importance_load(profile, NULL, &p, &err))
        die(err.message);
    const page_layout *l = w->pages = layout_pages(w->l);
    w->score = mem_calloc((size_t)l->n_page, sizeof *w->score);
    w->bytes = mem_calloc((size_t)l->n_page, sizeof *w->bytes);
    w->uses = mem_calloc((size_t)l->first_use[l->n_block], sizeof *w->uses);
    w->block_bytes = mem_calloc((size_t)l->n_block, sizeof *w->block_bytes);
    w->block_score = mem_calloc((size_t)l->n_block, sizeof *w->block_score);
    w->blocks = mem_calloc((size_t)l->n_block, sizeof *w->blocks);
    if (!w->score || !w->bytes || !w->uses || !w->block_bytes || !w->block_score || !w->blocks)
        die("no memory");
    for (int i = 0; i < l->n_page; i++) {
        w->score[i] = score_of(&p, l->pages[i].block);
        w->bytes[i] = l->pages[i].bytes;
    }
    list_uses(w, &p);
    importance_clear(&p);
}

static void close_world(world *w) {
    mem_free(w->score);
    mem_free(w->bytes);
    mem_free(w->uses);
    mem_free(w->block_bytes);
    mem_free(w->block_score);
    mem_free(w->blocks);
    layout_free(w->l);
    model_close(w->m);
}

static void say(const world *w, const char *name, double mib, const char *rest) {
    const double all = (double)w->pages->product_bytes / (1 << 20);
    printf("    %-38s %9.2f MiB %7.1f %% hits%s\n", name, mib, NUM_MAX(100 * (1 - mib / all), 0.0), rest);
}

static void simulate(const world *w, const char *name, const page_trace *t, page_policy policy,
                     uint64_t capacity) {
    page_count c;
    if (page_policy_run(t, policy, capacity, N_PASS, SKIP, &c))
        say(w, name, (double)c.bytes / (N_PASS - SKIP) / (1 << 20), "   (simulated)");
    else
        printf("    %-38s a unit is larger than the capacity\n", name);
}

/* ---- real ---- */

typedef struct run {
    double mib, tok_s;
    uint64_t capacity; /* bytes of pages and ring */
} run;

static run decode(const char *path, const char *plan, const nib_engine_options *o, uint64_t vectors) {
    nib_engine_options mine = *o;
    nib_engine *e;
    nib_session *s;
    nib_error err;
    nib_traffic before, after;
    nib_memory m;
    int32_t tokens[N_CTX];
    double rates[N_ROUND];
    mine.plan = plan;
    if (nib_engine_open(path, &mine, &e, &err) || nib_session_open(e, NULL, &s, &err))
        die(err.message);
    for (int i = 0; i < N_CTX; i++)
        tokens[i] = i + 1;
    nib_engine_traffic(e, &before);
    for (int r = 0; r < N_ROUND; r++) {
        tokens[0] = r + 1; /* a prefix that is not in the cache */
        if (nib_session_sync(s, tokens, 1, &err))
            die(err.message);
        if (r == 0)
            nib_engine_traffic(e, &before);
        const double start = time_now();
        for (size_t i = 2; i < N_TOKEN + 2; i++)
            if (nib_session_sync(s, tokens, i, &err))
                die(err.message);
        rates[r] = N_TOKEN / (time_now() - start);
    }
    nib_engine_traffic(e, &after);
    nib_engine_memory(e, &m);
    const run out = {.mib = (double)(after.streamed - before.streamed) /
                            (double)(after.n_pass - before.n_pass) / (1 << 20),
                     .tok_s = quantile(rates, N_ROUND, 0.5),
                     .capacity = m.owner[NIB_OWNER_WEIGHTS] - vectors + m.owner[NIB_OWNER_STAGING]};
    nib_session_close(s);
    nib_engine_close(e);
    return out;
}

/* The same plan with nothing resident; caller frees with free. */
static char *keep_nothing(const char *plan) {
    json_t *root = json_loads(plan, 0, NULL), *entry;
    size_t i;
    json_array_foreach(json_object_get(root, "blocks"), i, entry) {
        json_t *slices = json_object_get(entry, "slices"), *first = json_array_get(slices, 0);
        json_int_t bytes = 0;
        for (size_t j = 0; j < json_array_size(slices); j++)
            bytes += json_integer_value(json_object_get(json_array_get(slices, j), "bytes"));
        while (json_array_size(slices) > 1) /* the file's format, on two tiers */
            json_array_remove(slices, 1);
        if (first) {
            json_object_set_new(first, "bytes", json_integer(bytes));
            json_object_set_new(first, "tier", json_string("disk"));
        }
    }
    char *text = json_dumps(root, JSON_INDENT(1));
    json_decref(root);
    if (!text)
        die("no memory");
    return text;
}

static void one_cap(const world *w, const char *path, const char *name, uint64_t cap) {
    const page_layout *l = w->pages;
    nib_engine_options o;
    nib_error err;
    char *plan, size[32], capacity[32];
    nib_engine_options_init(&o);
    o.n_ctx = N_CTX;
    o.ram = cap;
    o.stream = true;
    o.packed = NIB_PACKED_ON;
    o.scratch = folder;
    o.shortlist = NIB_SHORTLIST_OFF;
    if (nib_plan(path, &o, NULL, &plan, &err)) {
        printf("cap %s: %s\n", name, err.message);
        return;
    }
    const run ours = decode(path, plan, &o, l->vector_bytes);
    char *bare = keep_nothing(plan);
    const run nothing = decode(path, bare, &o, l->vector_bytes);
    free(bare);
    nib_free(plan);
    printf("cap %s (%s): %s of pages and ring; a token uses %.2f MiB in %d pages\n", name,
           num_format_size(cap, size), num_format_size(ours.capacity, capacity),
           (double)l->product_bytes / (1 << 20), w->n_use);
    const page_trace pages = {w->bytes, w->score, l->n_page, w->uses, w->n_use},
                     blocks = {w->block_bytes, w->block_score, w->n_block, w->blocks, w->n_block};
    simulate(w, "LRU over blocks", &blocks, PAGE_LRU, ours.capacity);
    simulate(w, "LRU among the lowest scores, blocks", &blocks, PAGE_IMPORTANCE, ours.capacity);
    simulate(w, "LRU over pages", &pages, PAGE_LRU, ours.capacity);
    simulate(w, "LRU among the lowest scores, pages", &pages, PAGE_IMPORTANCE, ours.capacity);
    simulate(w, "Belady over pages", &pages, PAGE_BELADY, ours.capacity);
    snprintf(capacity, sizeof capacity, " %8.1f tok/s (measured)", ours.tok_s);
    say(w, "nibble's pager", ours.mib, capacity);
    snprintf(capacity, sizeof capacity, " %8.1f tok/s (measured)", nothing.tok_s);
    say(w, "nothing resident: LRU's reads, ahead", nothing.mib, capacity);
    fflush(stdout);
}

static bool parse_cap(const char *text, uint64_t size, uint64_t *cap) {
    char *end;
    const double share = strtod(text, &end);
    if (*end == 0 && share > 0 && share < 1) {
        *cap = (uint64_t)(share * (double)size);
        return true;
    }
    return num_parse_size(text, cap);
}

int main(int argc, char **argv) {
    static char *usual[] = {"0.9", "0.75", "0.5", "0.33"};
    char **caps = argc > 3 ? argv + 3 : usual, *path = NULL, command[64];
    const int n_cap = argc > 3 ? argc - 3 : (int)NUM_COUNT(usual);
    world w = {0};
    if (argc < 3 || model_find(argv[1], &path, NULL) || !mkdtemp(folder)) {
        fprintf(stderr, "usage: bench_pager MODEL PROFILE.json [cap ...]\n");
        return 2;
    }
    open_world(&w, path, argv[2]);
    for (int i = 0; i < n_cap; i++) {
        uint64_t cap;
        if (!parse_cap(caps[i], w.pages->image_bytes, &cap))
            die("a cap is bytes, or a share of the model's size");
        one_cap(&w, path, caps[i], cap);
    }
    close_world(&w);
    mem_free(path);
    snprintf(command, sizeof command, "rm -r %s", folder);
    return system(command) != 0;
}
