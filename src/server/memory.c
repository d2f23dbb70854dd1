/* memory.c - see memory.h. */
#include "server/memory.h"

#include "base/jsonx.h"

#include <string.h>

const char *const memory_owner_names[NIB_N_OWNER] = {
    [NIB_OWNER_WEIGHTS] = "weights", [NIB_OWNER_KV] = "kv",         [NIB_OWNER_ACTIVATIONS] = "activations",
    [NIB_OWNER_STAGING] = "staging", [NIB_OWNER_TABLES] = "tables", [NIB_OWNER_RUNTIME] = "runtime"};
const char *const memory_tier_names[NIB_N_TIER] = {
    [NIB_TIER_RAM] = "ram", [NIB_TIER_VRAM] = "vram", [NIB_TIER_DISK] = "disk"};

static json_t *bytes_or_null(uint64_t n_byte) {
    return n_byte == NIB_AUTO ? json_null() : json_integer((json_int_t)n_byte);
}

json_t *memory_owners(const nib_memory *m) {
    json_t *all = json_object();
    for (int o = 0; o < NIB_N_OWNER; o++)
        if (o != NIB_OWNER_RUNTIME)
            json_object_set_new(all, memory_owner_names[o], json_integer((json_int_t)m->owner[o]));
    return all;
}

void memory_read(memory_use of, nib_memory *out) {
    nib_memory draft;
    nib_engine_memory(of.engine, out);
    out->tier[NIB_TIER_RAM].planned += of.beside;
    if (out->tier[NIB_TIER_RAM].cap != NIB_AUTO)
        out->tier[NIB_TIER_RAM].cap += of.beside;
    if (!of.draft)
        return;
    nib_engine_memory(of.draft, &draft);
    const uint64_t vram = draft.tier[NIB_TIER_VRAM].planned;
    out->tier[NIB_TIER_VRAM].planned += vram;
    out->tier[NIB_TIER_VRAM].peak += draft.tier[NIB_TIER_VRAM].peak;
    if (out->tier[NIB_TIER_VRAM].cap != NIB_AUTO)
        out->tier[NIB_TIER_VRAM].cap += vram;
}

json_t *memory_json(memory_use of) {
    const nib_engine *engine = of.engine;
    nib_memory mem, draft;
    memory_read(of, &mem);
    if (of.draft)
        nib_engine_memory(of.draft, &draft);
    json_t *tiers = json_object(), *owners = json_object(), *formats = NULL;
    char *text = NULL;
    if (nib_engine_kv(engine, &text, NULL) == NIB_OK)
        (void)jsonx_parse(text, strlen(text), &formats, NULL);
    nib_free(text);
    for (int t = 0; t < NIB_N_TIER; t++)
        json_object_set_new(tiers, memory_tier_names[t],
                            json_pack("{s:o, s:I, s:I}", "cap", bytes_or_null(mem.tier[t].cap), "planned",
                                      (json_int_t)mem.tier[t].planned, "peak", (json_int_t)mem.tier[t].peak));
    for (int o = 0; o < NIB_N_OWNER; o++)
        json_object_set_new(owners, memory_owner_names[o], json_integer((json_int_t)mem.owner[o]));
    return json_pack("{s:o, s:I, s:o, s:o, s:o}", "tiers", tiers, "rss_peak", (json_int_t)mem.rss_peak,
                     "owners", owners, "draft", of.draft ? memory_owners(&draft) : json_null(), "kv",
                     formats ? formats : json_null());
}
