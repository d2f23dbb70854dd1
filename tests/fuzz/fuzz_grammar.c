/* Any bytes as a grammar or as a JSON schema: refused with a reason, or compiled; then a text that is made by
 * the automaton itself, byte by byte, is one that it reads to the end, within bounds on memory and work. The
 * first byte says which of the two it is, the second seeds the choice of bytes. */
#include "base/mem.h"
#include "grammar/automaton.h"
#include "grammar/schema.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { BYTES = 400 };

static void hold(bool good) {
    if (!good)
        abort();
}

static void speak(const pda *p, uint32_t seed) {
    automaton m;
    nib_error err;
    if (automaton_open(&m, p, AUTOMATON_MIN_BYTES, &err)) {
        hold(err.message[0] != '\0');
        automaton_close(&m);
        return;
    }
    uint32_t s = m.start;
    for (int i = 0; i < BYTES && s != AUTOMATON_FAILED && s != AUTOMATON_DEAD && m.states[s].n > 0; i++) {
        uint32_t to = AUTOMATON_DEAD;
        m.work_left = AUTOMATON_WORK;
        for (int k = 0; k < 256 && to == AUTOMATON_DEAD; k++) {
            seed = seed * 1664525 + 1013904223;
            to = automaton_step(&m, s, (uint8_t)((seed >> 24) + (uint32_t)k));
        }
        hold(to == AUTOMATON_FAILED || to >= AUTOMATON_FIRST || to == AUTOMATON_DEAD);
        hold((to == AUTOMATON_FAILED) == (m.failure != AUTOMATON_FINE));
        s = to;
    }
    automaton_close(&m);
}

static void compile(const char *text, size_t n, uint32_t seed, bool made) {
    pda p;
    nib_error err = {NIB_OK, ""};
    const nib_status status = pda_parse(text, n, &p, &err);
    hold(status == NIB_OK || err.message[0] != '\0');
    if (made && status != NIB_OK) /* a schema's grammar is well formed; it may be too large, or endless */
        hold(!strstr(err.message, "expected") || strstr(err.message, "at most"));
    if (status == NIB_OK)
        speak(&p, seed);
    pda_clear(&p);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    nib_error err = {NIB_OK, ""};
    char *gbnf = NULL;
    if (size < 2)
        return 0;
    const char *text = (const char *)data + 2;
    if (data[0] % 2 == 0) {
        compile(text, size - 2, data[1], false);
    } else if (schema_grammar(text, size - 2, "root", &gbnf, &err) == NIB_OK) {
        compile(gbnf, strlen(gbnf), data[1], true);
    } else {
        hold(err.message[0] != '\0');
    }
    mem_free(gbnf);
    return 0;
}
