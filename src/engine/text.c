/* text.c - see text.h. */
#include "engine/text.h"

#include "base/mem.h"

#include <malloc.h>

/* The vocabulary is large: its strings were charged with the container, and are given back. */
static nib_status open_tokenizer(nib_engine *e, const logger *log, nib_error *err) {
    const uint64_t before = container_heap_bytes(e->container);
    nib_error none;
    mem_bound b;
    engine_bound_set(e, &b);
    nib_status status = tokenizer_open(e->container, log, &e->tokenizer, &none);
    status = engine_bound_end(e, &b, "the tokenizer", status, &none);
    if (status == NIB_E_NOTFOUND)
        e->tokenizer = NULL;
    else if (status != NIB_OK) {
        if (err)
            *err = none;
        return status;
    }
    uint64_t text = e->tokenizer ? tokenizer_heap_bytes(e->tokenizer) : 0;
    NIB_TRY(ledger_charge(e->ledger, NIB_TIER_RAM, NIB_OWNER_TABLES, text, err));
    e->tables += text;
    container_drop_vocab(e->m ? model_container(e->m) : e->alone);
    malloc_trim(0);
    const uint64_t after = container_heap_bytes(e->container);
    if (after < before) {
        ledger_release(e->ledger, NIB_TIER_RAM, NIB_OWNER_TABLES, before - after);
        e->tables -= before - after;
    }
    e->text_is_open = true;
    return NIB_OK;
}

nib_status engine_open_text(nib_engine *e, nib_error *err) {
    return open_tokenizer(e, &e->log, err);
}

static void keep(void *user, const char *line) {
    engine_text *t = user;
    char *copy = t->n < ENGINE_TEXT_LINES ? mem_strdup(line) : NULL;
    if (copy)
        t->lines[t->n++] = copy;
}

nib_status engine_text_beside(void *text, nib_error *err) {
    engine_text *t = text;
    const logger kept = {keep, t};
    return open_tokenizer(t->e, &kept, err);
}

void engine_text_tell(engine_text *t) {
    for (int i = 0; i < t->n; i++) {
        log_line(&t->e->log, "%s", t->lines[i]);
        mem_free(t->lines[i]);
    }
    t->n = 0;
}
