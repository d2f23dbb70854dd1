/* text.c - see text.h. */
#include "engine/text.h"

#include "base/mem.h"
#include "engine/alloc_limit.h"

#include <malloc.h>

/* The vocabulary's strings are large. They were charged with the container, and are freed once the tokenizer
 * is built. */
nib_status text_open(engine_text *t, ledger *l, const logger *log, nib_error *err) {
    const uint64_t before = container_heap_bytes(t->from);
    nib_error none;
    mem_bound b;
    engine_alloc_limit_set(l, &b);
    nib_status status = tokenizer_open(t->from, log, &t->tokenizer, &none);
    status = engine_alloc_limit_end(l, &b, "the tokenizer", status, &none);
    if (status == NIB_E_NOTFOUND)
        t->tokenizer = NULL;
    else if (status != NIB_OK) {
        if (err)
            *err = none;
        return status;
    }
    const uint64_t bytes = t->tokenizer ? tokenizer_heap_bytes(t->tokenizer) : 0;
    NIB_TRY(ledger_charge(l, PLACE_RAM, NIB_OWNER_TABLES, bytes, err));
    container_drop_vocab(t->from);
    malloc_trim(0);
    const uint64_t after = container_heap_bytes(t->from);
    if (after < before)
        ledger_release(l, PLACE_RAM, NIB_OWNER_TABLES, before - after);
    t->is_open = true;
    return NIB_OK;
}

static void keep(void *user, const char *line) {
    text_loader *t = user;
    char *copy = t->n < TEXT_LINES ? mem_strdup(line) : NULL;
    if (copy)
        t->lines[t->n++] = copy;
}

nib_status text_open_async(void *maker, nib_error *err) {
    text_loader *t = maker;
    const logger kept = {keep, t, t->log->details};
    return text_open(t->of, t->ledger, &kept, err);
}

void text_log(text_loader *t) {
    for (int i = 0; i < t->n; i++) {
        log_line(t->log, "%s", t->lines[i]);
        mem_free(t->lines[i]);
    }
    t->n = 0;
}
