/* grammars.c - see grammars.h. */
#include "support/grammars.h"

#include "base/mem.h"
#include "grammar/schema.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

verdict judge(automaton *m, const char *text, size_t n) {
    uint32_t s = m->start;
    for (size_t i = 0; i < n; i++) {
        m->work_left = AUTOMATON_WORK;
        s = automaton_step(m, s, (uint8_t)text[i]);
        if (s == AUTOMATON_FAILED)
            fail_msg("'%.80s': the grammar %s", text, automaton_why(m->failure));
        if (s == AUTOMATON_DEAD)
            return NO;
    }
    return m->states[s].ends ? WHOLE : BEGINS;
}

void with_grammar(const char *gbnf, pda *p, automaton *m) {
    nib_error err = {NIB_OK, ""};
    if (pda_parse(gbnf, strlen(gbnf), p, &err) || automaton_open(m, p, AUTOMATON_MIN_BYTES, &err))
        fail_msg("%s\n%.2000s", err.message, gbnf);
}

void with_schema(const char *schema, uint64_t n_byte, pda *p, automaton *m) {
    nib_error err = {NIB_OK, ""};
    char *gbnf = NULL;
    if (schema_grammar(schema, strlen(schema), "root", &gbnf, &err) ||
        pda_parse(gbnf, strlen(gbnf), p, &err) || automaton_open(m, p, n_byte, &err))
        fail_msg("%.400s: %s\n%.2000s", schema, err.message, gbnf ? gbnf : "");
    mem_free(gbnf);
}

void without(pda *p, automaton *m) {
    automaton_close(m);
    pda_clear(p);
}
