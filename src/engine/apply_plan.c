/* apply_plan.c - see apply_plan.h. */
#include "engine/apply_plan.h"

#include "base/mem.h"
#include "base/num.h"
#include "engine/packed_folder.h"
#include "engine/imatrix.h"

#include <stdio.h>
#include <string.h>

/* Tolerances when a plan's bytes are compared with the packed bytes: parts of a matrix are rounded up to
 * pages. */
enum { SLACK_BYTES = 64 << 10, SLACK_SHARE = 32 };

enum { NAMES_SHOWN = 6 };

/* ---- blocks ---- */

static bool same_name(const char name[PLAN_NAME], const char *other) {
    return memchr(name, '\0', PLAN_NAME) && !strcmp(name, other);
}

static nib_status check_content(const engine_core *e, const plan *p, nib_error *err) {
    char found[CONTENT_KEY];
    if (p->content[0] == '\0')
        return NIB_OK;
    NIB_TRY(container_content_key(e->container, found, err));
    if (strncmp(found, p->content, sizeof p->content))
        return nib_fail(err, NIB_E_MODEL, "the plan was made for other weights: %.39s, these are %s",
                        p->content, found);
    return NIB_OK;
}

static bool has_vram(const plan_block *b) {
    for (int i = 0; i < b->n_slice; i++)
        if (b->slices[i].tier == NIB_TIER_VRAM)
            return true;
    return false;
}

static nib_status check_slices(const plan_block *pb, const block *b, nib_error *err) {
    uint64_t first_on_disk, second_in_ram;
    for (int i = 0; i < pb->n_slice; i++)
        if (pb->slices[i].tier < 0 || pb->slices[i].tier > PLAN_LEFT_OUT)
            return nib_fail(err, NIB_E_USAGE,
                            "plan: %s: expected slices in RAM, in VRAM or on disk, found tier %d", b->name,
                            pb->slices[i].tier);
    if (has_vram(pb) && !pb->on_gpu)
        return nib_fail(
            err, NIB_E_USAGE,
            "plan: %s: expected a block that the GPU computes, found weights in VRAM for the processor",
            b->name);
    if (!plan_block_bytes(pb, false, NIB_TIER_DISK, &first_on_disk) ||
        !plan_block_bytes(pb, true, NIB_TIER_RAM, &second_in_ram) || (first_on_disk && second_in_ram))
        return nib_fail(
            err, NIB_E_USAGE,
            "plan: %s: expected second slices in RAM only where all first ones are, found some on "
            "disk",
            b->name);
    return NIB_OK;
}

static nib_status check_block(const plan *p, const plan_block *pb, const block *b, nib_error *err) {
    if (!same_name(pb->name, b->name))
        return nib_fail(err, NIB_E_USAGE, "plan: expected block %s here, found \"%.63s\"", b->name, pb->name);
    if (pb->left_out && p->mode == 'a')
        return nib_fail(err, NIB_E_USAGE, "plan: %s: expected all layers in mode a, found this one left out",
                        b->name);
    if (pb->left_out && pb->n_slice > 0)
        return nib_fail(err, NIB_E_USAGE,
                        "plan: %s: expected no slices in a layer that is left out, found %d", b->name,
                        pb->n_slice);
    if (!pb->left_out && pb->activation != 4 && pb->activation != 8 && pb->activation != 16 &&
        pb->activation != NIB_ACT_AX)
        return nib_fail(err, NIB_E_USAGE,
                        "plan: %s: expected activations of 4, 8 or 16 bits or NIB_ACT_AX, found %d", b->name,
                        pb->activation);
    return check_slices(pb, b, err);
}

static uint64_t far_from(uint64_t a, uint64_t b) {
    return a > b ? a - b : b - a;
}

/* Packed bytes of the block's own first slices (and vectors), or of its second slices. */
static uint64_t slice_bytes(const block *b, bool second) {
    uint64_t sum = 0;
    for (int i = 0; i < b->n_weight; i++)
        if (weight_is_second(&b->weights[i]) == second)
            sum += (b->weights[i].bytes + 63) / 64 * 64; /* cannot overflow: block_sum has checked the sum */
    return sum;
}

/* Checks that the slices add up to the block's bytes in its formats. */
static nib_status check_bytes(const plan_block *pb, const block *b, const char *recipe_name, nib_error *err) {
    char expected[32], found[32];
    for (int second = 0; second < 2; second++) {
        const uint64_t all = slice_bytes(b, second);
        uint64_t sum;
        const bool fits = plan_block_bytes(pb, second, -1, &sum);
        if (fits && far_from(sum, all) <= SLACK_BYTES + all / SLACK_SHARE)
            continue;
        num_format_size(all, expected);
        num_format_size(fits ? sum : UINT64_MAX, found);
        return nib_fail(err, NIB_E_USAGE,
                        "plan: %s: in the format %s expected %s slices of %s together, found %s", b->name,
                        recipe_name, second ? "second" : "first", expected, found);
    }
    return NIB_OK;
}

/* The bytes of the block's slices in each place, and its device. */
static layout_place place_of(const engine_core *e, const plan_block *pb) {
    layout_place place = {.on_gpu = pb->on_gpu, .in_vram = has_vram(pb), .apart = pb->apart};
    for (int second = 0; second < 2; second++)
        for (int i = 0; i < PLACES; i++)
            plan_block_bytes(pb, second, e->places.of[i].kind, &place.bytes[second][i]);
    return place;
}

/* Sets the layout's choice for one block. */
static nib_status choose_part(const plan *p, const plan_block *pb, const block *b, layout_part *part,
                              nib_error *err) {
    char found[PLAN_MAX_SLICE * (PACK_NAME + 2)];
    NIB_TRY(check_block(p, pb, b, err));
    part->left_out = pb->left_out;
    if (pb->left_out || plan_block_recipe(pb, part->format))
        return NIB_OK;
    plan_block_formats(pb, found, sizeof found);
    return nib_fail(err, NIB_E_USAGE,
                    "plan: %s: expected one format for all its slices, or a stack's two (u4g64, "
                    "+u4g64), found %s",
                    b->name, found);
}

/* places: [n_block], filled here; NULL: the pages are placed later. */
static nib_status make_layout(engine_core *e, const plan *p, layout_part *parts, layout_place *places,
                              nib_error *err) {
    const layout_choice choice = {
        .parts = parts, .shortlist = layout_has_shortlist(e->layout), .places = places};
    layout *made;
    for (int b = 0; b < p->n_block; b++) {
        NIB_TRY(choose_part(p, &p->blocks[b], model_block(e->m, b), &parts[b], err));
        if (places)
            places[b] = place_of(e, &p->blocks[b]);
    }
    const nib_status status = layout_make(e->m, &choice, &made, err);
    if (status != NIB_OK)
        return nib_fail_prefix(err, status, "plan");
    for (int b = 0; b < p->n_block; b++)
        if (!parts[b].left_out) {
            const nib_status fits = check_bytes(&p->blocks[b], layout_block(made, b), parts[b].format, err);
            if (fits == NIB_OK)
                continue;
            layout_free(made);
            return fits;
        }
    return core_set_layout(e, made, err);
}

static void apply_activations(engine_core *e, const plan *p) {
    for (int b = 0; e->resolved.activation == 0 && b < p->n_block; b++)
        if (!p->blocks[b].left_out)
            e->resolved.act_bits[b] = (uint8_t)p->blocks[b].activation;
}

static nib_status check_device(const engine_core *e, const plan *p, nib_error *err) {
    if (!plan_is_of_gpu(p) || e->kind->share)
        return NIB_OK;
    return nib_fail(err, NIB_E_USAGE,
                    "the plan has layers on the GPU, but the back end is %s: use --backend cuda",
                    e->kind->name);
}

/* ---- what the run logs ---- */

static bool is_rounded(const block *b) {
    for (int i = 0; i < b->n_weight; i++)
        if (weight_is_rounded(&b->weights[i]) && b->weights[i].shared_block < 0)
            return true;
    return false;
}

static void log_changes(const engine_core *e) {
    char names[256] = "";
    size_t n = 0;
    int missing = 0, rounded = 0;
    for (int i = 0; i < model_n_block(e->m); i++) {
        const block *b = layout_block(e->layout, i);
        rounded += is_rounded(b);
        if (!layout_is_left_out(e->layout, i))
            continue;
        if (missing++ < NAMES_SHOWN && n < sizeof names)
            n += (size_t)snprintf(names + n, sizeof names - n, "%s%s", n ? ", " : "", b->name);
    }
    if (missing)
        log_line(&e->log, "layers are missing: %d of %d are left out (%s%s)", missing,
                 model_n_block(e->m) - 2, names, missing > NAMES_SHOWN ? ", ..." : "");
    if (rounded)
        log_line(&e->log, "weights are rounded: %d of %d blocks have other formats than the file", rounded,
                 model_n_block(e->m) - missing);
}

/* Warns if streamed blocks are rounded again for each token. Rounding takes far longer than reading, so the
 * planner never plans that. */
static void warn_of_rounding(const engine_core *e, const plan *p) {
    int n = 0;
    for (int i = 0; i < p->n_block; i++) {
        const plan_block *pb = &p->blocks[i];
        uint64_t first = 0, second = 0;
        if (pb->left_out || !is_rounded(layout_block(e->layout, i)))
            continue;
        plan_block_bytes(pb, false, NIB_TIER_DISK, &first);
        plan_block_bytes(pb, true, NIB_TIER_DISK, &second);
        n += first || second;
    }
    if (n && !engine_packed_expected(e))
        log_line(&e->log,
                 "slow: %d blocks that the plan rounds are streamed without a packed file, so they are "
                 "rounded again for each token; --packed-cache on (or --scratch DIR) with --plan rounds "
                 "them once, into a file",
                 n);
}

nib_status apply_blocks(engine_core *e, const plan *p, bool with_places, nib_error *err) {
    const int n = model_n_block(e->m);
    NIB_TRY(check_content(e, p, err));
    if (p->n_block != n)
        return nib_fail(err, NIB_E_USAGE, "plan: expected %d blocks (embed, %d layers, head), found %d", n,
                        n - 2, p->n_block);
    layout_part *parts = mem_calloc((size_t)n, sizeof *parts);
    layout_place *places = with_places ? mem_calloc((size_t)n, sizeof *places) : NULL;
    nib_status status =
        parts && (places || !with_places)
            ? make_layout(e, p, parts, places, err)
            : nib_fail_nomem(err, (size_t)n * (sizeof *parts + sizeof *places), "the plan's blocks");
    mem_free(parts);
    mem_free(places);
    NIB_TRY(status);
    NIB_TRY(check_device(e, p, err));
    apply_activations(e, p);
    NIB_TRY(imatrix_attach(e, p->prompts, err));
    log_changes(e);
    warn_of_rounding(e, p);
    return NIB_OK;
}
