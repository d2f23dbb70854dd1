/* weights.c - loads the weights. If the layout has the homes of its pages, from a plan, they are checked and
 * followed. Otherwise this file calls plan/homes.h, which assigns a place to each page, because the free
 * bytes are known here. The pager follows the assignment. */
#include "engine/weights.h"

#include "base/mem.h"
#include "base/num.h"
#include "plan/homes.h"
#include "engine/packed_folder.h"
#include "engine/popular.h"

#include <string.h>

typedef struct placing {
    engine_core *e;
    pager *pager;
    uint64_t others; /* bytes of RAM that will be charged after the weights are loaded */
    const bool *copied;
    pager_need need;
    pager_page *pages; /* [n_page] */
    int n_page;
    uint8_t *home_of;         /* [n_page] */
    const popularity *chosen; /* NULL: all experts fit */
} placing;

static nib_status refuse(const placing *w, uint64_t whole, uint64_t min, nib_error *err) {
    engine_core *e = w->e;
    char cap[32], all[32], small[32];
    const uint64_t held =
        ledger_promised(e->ledger, PLACE_RAM) + (uint64_t)e->resolved.n_thread * LEDGER_THREAD_SPREAD;
    num_format_size(core_cap_of(e, ledger_cap(e->ledger, PLACE_RAM)), cap);
    num_format_cap(core_cap_of(e, held + whole), all);
    num_format_cap(core_cap_of(e, held + min), small);
    e->cap_is_named = !layout_homes(e->layout);
    if (e->resolved.residuals_in_ram)
        return nib_fail(
            err, NIB_E_NOFIT,
            "RAM: the cap of %s is too small; %s is the smallest that works with residuals beside "
            "all weights (--scratch DIR keeps them on disk)",
            cap, all);
    if (whole <= min)
        return nib_fail(err, NIB_E_NOFIT, "RAM: the cap of %s is too small; %s is the smallest that works",
                        cap, all);
    if (e->resolved.stream)
        return nib_fail(err, NIB_E_NOFIT,
                        "RAM: the cap of %s is too small; %s is the smallest that works, and %s holds the "
                        "whole model",
                        cap, small, all);
    return nib_fail(err, NIB_E_NOFIT,
                    "RAM: the cap of %s is too small; %s is the smallest that works, or %s when weights may "
                    "be streamed",
                    cap, all, small);
}

static nib_status check_plan(const placing *w, uint64_t free_bytes, nib_error *err) {
    const uint64_t kept = homes_bytes(w->pages, w->n_page, w->home_of, PLACE_RAM);
    char keeps[32], have[32], cap[32];
    if (kept <= free_bytes)
        return NIB_OK;
    return nib_fail(err, NIB_E_NOFIT,
                    "RAM: the plan has %s of resident weights, but the cap of %s leaves %s for them",
                    num_format_size(kept, keeps),
                    num_format_size(core_cap_of(w->e, ledger_cap(w->e->ledger, PLACE_RAM)), cap),
                    num_format_size(free_bytes, have));
}

/* Pages that a device copies once need not be resident, so that memory is left for pages that are read
 * repeatedly. */
static void leave_to_device(const placing *w) {
    for (int i = 0; i < w->n_page; i++)
        if (w->copied && w->copied[i])
            w->home_of[i] = PLACE_DISK;
}

/* Refuses residuals that leave too little RAM for the weights that a device does not hold. */
static nib_status check_residuals(const placing *w, nib_error *err) {
    char cap[32];
    for (int i = 0; i < w->n_page; i++)
        if (w->home_of[i] == PLACE_DISK && !w->pages[i].table && !(w->copied && w->copied[i]))
            return nib_fail(
                err, NIB_E_NOFIT,
                "RAM: the cap of %s does not hold residuals beside the weights that the GPU reads "
                "from RAM",
                num_format_size(core_cap_of(w->e, ledger_cap(w->e->ledger, PLACE_RAM)), cap));
    return NIB_OK;
}

/* The most popular experts of each block get memory first. */
static void rank_experts(placing *w) {
    for (pager_page *page = w->pages; page < w->pages + w->n_page; page++) {
        const double *share = page->chosen ? popular_shares(w->e, w->chosen, page->block) : NULL;
        if (share)
            page->rank = popular_rank(share, w->chosen->n_expert, page->expert);
    }
}

/* The pager keeps popular experts until it has seen what this run chooses. */
static void tell_shares(const placing *w) {
    if (!w->chosen)
        return;
    for (const pager_page *page = w->pages; page < w->pages + w->n_page; page++) {
        const double *share = page->leads ? popular_shares(w->e, w->chosen, page->block) : NULL;
        if (share)
            pager_expect_expert(w->pager, page->block, page->expert, (float)share[page->expert]);
    }
}

/* Says that no order of keeping experts helps, if one token uses more than fit. */
static void say_if_few(const placing *w) {
    const uint64_t n_used = (uint64_t)model_hparams(w->e->m)->n_expert_used;
    uint64_t kept = 0, token = 0;
    char have[32], uses[32], more[32];
    for (int i = 0; i < w->n_page; i++) {
        const pager_page *page = &w->pages[i];
        kept += page->chosen && w->home_of[i] == PLACE_RAM ? page->bytes : 0;
        token += page->chosen && page->expert == 0 ? n_used * page->bytes : 0;
    }
    if (kept < token && !w->copied)
        log_line(
            &w->e->log,
            "experts: %s fit in memory, but one token uses %s of them, so nearly all are read from disk "
            "for each token; with %s more RAM, or smaller weights (nibble quantize), one token's would fit",
            num_format_size(kept, have), num_format_size(token, uses), num_format_size(token - kept, more));
}

/* Places pages when some are streamed: resident pages get the memory that the ring and the packed file's
 * checksums leave. */
static nib_status place_some(placing *w, uint64_t min, nib_error *err) {
    const ledger *l = w->e->ledger;
    const bool capped = ledger_cap(l, PLACE_RAM) != NIB_AUTO;
    NIB_TRY(pager_source(w->pager, capped ? ledger_free(l, PLACE_RAM) - min : NIB_AUTO, err));
    const uint64_t free_bytes = capped ? ledger_free(l, PLACE_RAM) - min : NIB_AUTO;
    const uint64_t left[PLACES] = {[PLACE_RAM] = free_bytes};
    if (layout_homes(w->e->layout))
        return check_plan(w, free_bytes, err);
    memset(w->home_of, HOME_OPEN, (size_t)w->n_page);
    leave_to_device(w);
    NIB_TRY(popular_read(w->e, &w->chosen, err));
    rank_experts(w);
    homes_spread(w->pages, w->n_page, left, w->home_of);
    say_if_few(w);
    return w->e->resolved.residuals_in_ram ? check_residuals(w, err) : NIB_OK;
}

static void move_from(const placing *w, int from, int to) {
    for (int i = 0; i < w->n_page; i++)
        if (w->home_of[i] == from)
            w->home_of[i] = (uint8_t)to;
}

/* Places the pages: by the plan; otherwise all in RAM, or as many as fit. */
static nib_status place(placing *w, nib_error *err) {
    const engine_core *e = w->e;
    const uint8_t *planned = layout_homes(e->layout);
    const uint64_t left = ledger_free(e->ledger, PLACE_RAM);
    const uint64_t whole = homes_whole(&w->need, w->others), min = homes_min(&w->need, w->others);
    bool streams = left != NIB_AUTO && whole > left;
    if (whole == UINT64_MAX)
        return nib_fail(err, NIB_E_MODEL, "the size of the weights overflows 64 bits");
    memset(w->home_of, PLACE_RAM, (size_t)w->n_page);
    if (planned) { /* weights that a plan has on the GPU get there through RAM, or once from disk */
        memcpy(w->home_of, planned, (size_t)w->n_page);
        streams = streams || homes_bytes(w->pages, w->n_page, w->home_of, PLACE_DISK) > 0;
    }
    move_from(w, PLACE_GPU, PLACE_RAM);
    if (planned && streams)
        leave_to_device(w);
    if (!streams)
        return NIB_OK;
    if ((!e->resolved.stream && !planned) || left < min)
        return refuse(w, whole, min, err);
    return place_some(w, min, err);
}

static nib_status place_and_load(placing *w, nib_error *err) {
    NIB_TRY(pager_list(w->pager, &w->pages, &w->n_page, &w->need, err));
    w->home_of = mem_alloc((size_t)w->n_page + 1);
    if (!w->home_of)
        return nib_fail_nomem(err, (uint64_t)w->n_page, "the pages' homes");
    NIB_TRY(place(w, err));
    NIB_TRY(pager_load(w->pager, w->home_of, err));
    tell_shares(w);
    return NIB_OK;
}

nib_status engine_open_weights(engine_core *e, uint64_t others, const bool *copied, const pager *lender,
                               pager **out, nib_error *err) {
    const nib_engine_options *requested = &e->requested;
    char *packed = engine_packed_folder(e);
    text_loader text = {.of = &e->text, .ledger = e->ledger, .log = &e->log};
    placing w = {.e = e, .others = others, .copied = copied};
    const pager_options how = {.threads = e->threads,
                               .packed = packed,
                               .lender = lender,
                               .write_packed = engine_packed_may_write(e),
                               .progress = requested->progress,
                               .cancel = &e->cancel,
                               .log = &e->log,
                               .user = requested->user,
                               .side_task = e->text.is_open ? NULL : text_open_async,
                               .side_user = &text,
                               .side_bytes = container_heap_bytes(e->container)};
    ledger_measure_runtime(e->ledger, true);
    nib_status status = pager_open(e->layout, e->ledger, &how, &w.pager, err);
    if (status == NIB_OK)
        status = place_and_load(&w, err);
    if (status == NIB_OK)
        *out = w.pager;
    else
        pager_close(w.pager);
    mem_free(w.pages);
    mem_free(w.home_of);
    text_log(&text);
    mem_free(packed);
    return status;
}
