/* batch.c - many generations in one step loop (continuous batching: a waiting request takes a free slot
 * between two steps). A slot holds one sequence; its page table exists from the beginning. Requests move from
 * the queue to a slot, and then to the list of ended requests. Pages are reserved once, for n_position
 * positions. A request is admitted when the maximum of pages that it may need fits beside those of the
 * others, so an answer never lacks a page. With optimistic admission it is admitted earlier (batch_pages.c).
 * batch_requests.c adds requests and returns ended ones, batch_slots.c admits them, and batch_step.c computes
 * the steps. */
#include "session/batch_parts.h"

#include "base/mem.h"

#include <string.h>

enum { DEFAULT_SEQUENCES = 8, MAX_SEQUENCES = ENGINE_MAX_SESSION };
#define PREFIX_BYTES (UINT64_C(4) << 30)
#define CACHE_RAM    (UINT64_C(8) << 30)

void nib_batch_options_init(nib_batch_options *options) {
    memset(options, 0, sizeof *options);
    options->cache_ram = NIB_AUTO;
}

static nib_status set_options(nib_batch *b, const nib_batch_options *o, nib_error *err) {
    const backend_rows *rows = &b->driver.on.step->backend->rows;
    if (o->n_sequence < 0 || o->n_sequence > MAX_SEQUENCES || o->n_ctx < 0 || o->n_position < 0 ||
        o->n_prompt < 0 || o->n_draft < -DRAFT_MAX || o->n_draft > DRAFT_MAX || o->n_draft_min < 0 ||
        !(o->latency_s >= 0) || (o->kv_type != 0 && !engine_kv_formats(b->engine, o->kv_type, &b->kv)))
        return nib_fail(err, NIB_E_USAGE,
                        "a batch: expected at most %d sequences, a context, positions and rows of 0 or more, "
                        "a nib_kv_type and at most %d drafts, found %ld, %lld, %lld, %lld, %d and %ld",
                        MAX_SEQUENCES, DRAFT_MAX, (long)o->n_sequence, (long long)o->n_ctx,
                        (long long)o->n_position, (long long)o->n_prompt, o->kv_type, (long)o->n_draft);
    b->n_slot = o->n_sequence ? o->n_sequence : DEFAULT_SEQUENCES;
    b->n_ctx = o->n_ctx ? o->n_ctx : b->driver.on.n_ctx;
    b->n_prompt = o->n_prompt ? o->n_prompt : rows->n_pass;
    b->latency_s = o->latency_s;
    const sweep_kind kinds[] = {[NIB_SCHEDULE_REFILL] = SWEEP_REFILL,
                                [NIB_SCHEDULE_BLOCK] = SWEEP_BLOCK,
                                [NIB_SCHEDULE_ROW] = SWEEP_ROW};
    if (o->schedule < NIB_SCHEDULE_REFILL || o->schedule > NIB_SCHEDULE_ROW || o->n_spread < 0)
        return nib_fail(err, NIB_E_USAGE,
                        "a batch: expected a nib_schedule and 0 or more steps, found %d and %lld",
                        o->schedule, (long long)o->n_spread);
    b->sweeps = (sweeps){.kind = kinds[o->schedule],
                         .width = o->schedule == NIB_SCHEDULE_ROW ? NUM_MIN((int64_t)b->n_slot, rows->n_cell)
                                                                  : b->n_slot,
                         .spacing = o->n_spread};
    b->optimistic = o->optimistic;
    b->prompts_first = o->prompts_first;
    b->driver.n_draft = o->n_draft < 0 ? NUM_MIN(-(int64_t)o->n_draft, b->driver.on.n_draft) : o->n_draft;
    b->driver.n_draft_min = o->n_draft_min;
    const int64_t pages = kv_table_pages(b->kv, b->n_ctx);
    NIB_TRY(engine_check_positions(b->engine, b->kv, b->n_ctx, err));
    if (b->n_slot > rows->n_pass)
        return nib_fail(err, NIB_E_USAGE,
                        "%ld sequences are more than the %lld rows that a pass of this engine has (n_batch)",
                        (long)b->n_slot, (long long)rows->n_pass);
    if (pages > INT64_MAX / KV_BLOCK / b->n_slot)
        return nib_fail(err, NIB_E_NOFIT, "keys and values of %ld sequences overflow 64 bits",
                        (long)b->n_slot);
    b->n_page = o->n_position ? kv_table_pages(b->kv, o->n_position) : pages * b->n_slot;
    return NIB_OK;
}

static nib_status open_slots(nib_batch *b, const sequence_memory *memory, nib_error *err) {
    const uint64_t tokens = (uint64_t)b->n_slot * (uint64_t)b->n_ctx * sizeof(int32_t);
    b->slots = mem_calloc((size_t)b->n_slot, sizeof *b->slots);
    b->aged = mem_calloc((size_t)b->n_slot, sizeof *b->aged);
    if (!b->slots || !b->aged)
        return nib_fail_nomem(err, (size_t)b->n_slot * sizeof *b->slots, "a batch's sequences");
    const step_links *links = b->driver.on.step->links;
    NIB_TRY(driver_open(&b->driver, b->n_slot, links ? links->n_pass : 1, err));
    NIB_TRY(memory_region_open(&b->memory, device_host(), b->driver.on.ledger, NIB_OWNER_ACTIVATIONS, tokens,
                               true, "a batch's tokens", err));
    memory_region_touch(&b->memory, tokens);
    NIB_TRY(batch_prompts_open(b, err));
    for (int32_t i = 0; i < b->n_slot; i++) {
        b->aged[i] = &b->slots[i];
        b->slots[i].on.index = i;
        NIB_TRY(sequence_open(&b->slots[i].on.of, memory, b->n_ctx, (int32_t *)b->memory.at + i * b->n_ctx,
                              &b->reserved, err));
    }
    return NIB_OK;
}

/* If running sequences have keys and values in RAM, they need it, and copies of ended ones would delay them.
 */
static nib_status open_cache(nib_batch *b, uint64_t bytes, nib_error *err) {
    const device *d = b->driver.on.step->backend->device;
    device_info where;
    d->kind->info(d, &where);
    if (bytes == NIB_AUTO)
        bytes = where.host_reads || kv_paging_has(kv_pool_paging(b->pages), KV_HOME_STAGED)
                    ? 0
                    : NUM_MIN(ledger_free(b->driver.on.ledger, PLACE_RAM) / 4, CACHE_RAM);
    else if (bytes > 0 && engine_is_joined(b->engine))
        engine_log(b->engine, "no pages of ended sequences are kept in RAM: several devices have none");
    return kv_pool_keep(b->pages, bytes, &b->n_kept, err);
}

static nib_status open_batch(nib_batch *b, const nib_batch_options *o, nib_error *err) {
    sequence_memory memory;
    NIB_TRY(set_options(b, o, err));
    NIB_TRY(engine_sequence_memory(b->engine, b->kv, &memory, err));
    memory.goes_back = driver_goes_back(&b->driver);
    const kv_amount n = kv_table_amount(kv_pool_paging(memory.pages), b->n_slot, b->n_page);
    NIB_TRY(kv_call_reserve(memory.pages, n, err));
    b->reserved = n;
    b->pages = memory.pages;
    b->n_page_free = b->n_page;
    NIB_TRY(open_cache(b, o->cache_ram, err));
    NIB_TRY(open_slots(b, &memory, err));
    NIB_TRY(driver_open_draft(&b->driver, o->draft, b->engine, b->n_slot, b->n_ctx, err));
    if (o->prefix_cache)
        NIB_TRY(engine_open_prefixes(b->engine, b->kv, o->prefix_cache,
                                     o->prefix_bytes ? o->prefix_bytes : PREFIX_BYTES, b->n_ctx, &b->disk,
                                     err));
    nib_memory now; /* raise the planned peak: the engine's own plan reserves one sequence */
    ledger_report(b->driver.on.ledger, &now);
    ledger_plan(b->driver.on.ledger, PLACE_RAM,
                NUM_MAX(now.tier[NIB_TIER_RAM].planned, ledger_promised(b->driver.on.ledger, PLACE_RAM)));
    return NIB_OK;
}

nib_status nib_batch_open(nib_engine *e, const nib_batch_options *options, nib_batch **out, nib_error *err) {
    static const nib_batch_options usual = {.cache_ram = NIB_AUTO};
    NIB_TRY(engine_check_answers(e, err));
    nib_batch *b = mem_calloc(1, sizeof *b);
    if (!b)
        return nib_fail_nomem(err, sizeof *b, "the batch");
    b->engine = e;
    b->driver.on = engine_parts_of(e);
    b->kv = b->driver.on.kv;
    pthread_mutex_init(&b->lock, NULL);
    const nib_status status = open_batch(b, options ? options : &usual, err);
    if (status == NIB_OK)
        *out = b;
    else
        nib_batch_close(b);
    return engine_name_sessions(e, status, err);
}

static void free_list(request_list *list) {
    for (request *r; (r = batch_pop(list));)
        batch_request_free(r);
}

void nib_batch_close(nib_batch *b) {
    if (!b)
        return;
    driver_drop(&b->driver);
    for (int32_t i = 0; b->slots && i < b->n_slot; i++) {
        generation_close(&b->slots[i].on.g);
        batch_request_free(b->slots[i].r);
        sequence_close(&b->slots[i].on.of);
    }
    for (int c = 0; c < b->fairness.n; c++)
        free_list(&b->queue[c]);
    free_list(&b->done);
    kv_disk_close(b->disk);
    if (b->pages)
        kv_pool_unkeep(b->pages, b->n_kept);
    if (b->pages)
        kv_call_unreserve(b->pages, b->reserved);
    memory_region_close(&b->memory);
    mem_free(b->slots);
    mem_free(b->aged);
    batch_prompts_close(b);
    driver_close(&b->driver);
    pthread_mutex_destroy(&b->lock);
    mem_free(b);
}

void nib_batch_count(nib_batch *b, nib_batch_counts *out) {
    kv_disk_counts disk = {0};
    kv_usage pages;
    kv_pool_usage(b->pages, &pages);
    if (b->disk)
        kv_disk_count(b->disk, &disk);
    *out = (nib_batch_counts){.disk_bytes = disk.bytes,
                              .disk_read = disk.n_read,
                              .disk_written = disk.n_written,
                              .disk_damaged = disk.n_damaged,
                              .disk_missed = disk.n_missed,
                              .ram_bytes = pages.ram_bytes,
                              .ram_saved = pages.n_saved,
                              .ram_restored = pages.n_restored};
    pthread_mutex_lock(&b->lock);
    out->paused = b->n_paused;
    out->draft_n = b->n_proposed;
    out->draft_right = b->n_right;
    pthread_mutex_unlock(&b->lock);
}
