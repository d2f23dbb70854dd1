/* Parsing of answers: thoughts, text and calls, equal for every way to cut the answer into pieces. */
#include "server/answer_parser.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* "think:... say:... call:name(arguments)"; adjacent parts of one kind are joined. */
typedef struct heard {
    char text[1024];
    int last;
} heard;

static void hear(void *user, const answer_part *p) {
    static const char *const names[] = {
        [PART_TEXT] = "say:", [PART_THOUGHT] = "think:", [PART_CALL] = "call:"};
    heard *h = user;
    const size_t n = strlen(h->text);
    const bool more = h->last == (int)p->kind && p->kind != PART_CALL;
    assert_true(p->n_byte > 0);
    if (p->kind == PART_CALL)
        snprintf(h->text + n, sizeof h->text - n, "%scall:%d:%s(%.*s)", n ? " " : "", p->index, p->name,
                 (int)p->n_byte, p->text);
    else
        snprintf(h->text + n, sizeof h->text - n, "%s%s%.*s", more || !n ? "" : " ",
                 more ? "" : names[p->kind], (int)p->n_byte, p->text);
    h->last = (int)p->kind;
}

typedef struct row {
    tool_style tools;
    bool thinks, calls;
    const char *text, *is;
} row;

static void check(const row *r, size_t piece) {
    heard h = {.last = -1};
    answer_parser s;
    const size_t n = strlen(r->text);
    answer_parser_init(&s, r->tools, r->thinks, r->calls);
    for (size_t i = 0; i < n; i += piece)
        assert_true(answer_parser_feed(&s, r->text + i, piece < n - i ? piece : n - i, false, hear, &h));
    assert_true(answer_parser_feed(&s, "", 0, true, hear, &h));
    answer_parser_clear(&s);
    if (strcmp(h.text, r->is) != 0)
        fail_msg("'%s' in pieces of %zu is '%s' and not '%s'", r->text, piece, h.text, r->is);
}

static const row rows[] = {
    {TOOLS_NONE, false, false, "Hello.", "say:Hello."},
    {TOOLS_NONE, false, false, "<tool_call>{}</tool_call>", "say:<tool_call>{}</tool_call>"},
    {TOOLS_NONE, false, false, "<think>\nWhy?\n</think>\n\nSo.", "think:Why?\n say:So."},
    {TOOLS_NONE, false, false, "\n<think>a</think>b", "think:a say:b"},
    {TOOLS_NONE, false, false, "  <thin air", "say:  <thin air"},
    {TOOLS_NONE, false, false, "x <think>a</think>", "say:x <think>a</think>"},
    {TOOLS_NONE, true, false, "a </thin b</think>c", "think:a </thin b say:c"},
    {TOOLS_NONE, true, false, "never done", "think:never done"},
    {TOOLS_TAGGED, false, false, "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1}}\n</tool_call>",
     "call:0:f({\"a\": 1})"},
    {TOOLS_TAGGED, false, false,
     "<tool_call>{\"arguments\":{\"a\":[0.10,1e5,100000000000000000000]},\"name\":\"f\"}</tool_call>",
     "call:0:f({\"a\":[0.10,1e5,100000000000000000000]})"},
    {TOOLS_TAGGED, false, false,
     "Let me. "
     "<tool_call>{\"name\":\"f\",\"arguments\":{}}</tool_call>\n<tool_call>{\"name\":\"g\"}</tool_call>",
     "say:Let me.  call:0:f({}) call:1:g({})"},
    {TOOLS_TAGGED, false, false, "<think>x</think><tool_call>{\"name\":\"f\",\"arguments\":{}}</tool_call>!",
     "think:x call:0:f({}) say:!"},
    {TOOLS_TAGGED, false, true, "{\"name\":\"f\",\"arguments\":{}}\n</tool_call>", "call:0:f({})"},
    {TOOLS_TAGGED, false, false, "<tool_call>{\"name\":\"f\",\"arguments\":{}}", "call:0:f({})"},
    {TOOLS_TAGGED, false, false, "<tool_call>{\"name\":1}</tool_call>z", "say:{\"name\":1}</tool_call>z"},
    {TOOLS_TAGGED, false, false, "a <tool_cal", "say:a <tool_cal"},
    {TOOLS_LISTED, false, false, "[TOOL_CALLS][{\"name\":\"f\",\"arguments\":{\"b\":[]}}, {\"name\":\"g\"}]",
     "call:0:f({\"b\":[]}) call:1:g({})"},
    {TOOLS_LISTED, false, false, "[TOOL_CALLS]f[ARGS] {\"a\": 1e1} ", "call:0:f({\"a\": 1e1})"},
    {TOOLS_LISTED, false, false, "[1, 2]", "say:[1, 2]"},
    {TOOLS_BARE, false, false, "{\"name\": \"f\", \"parameters\": {\"a\": \"x\"}}",
     "call:0:f({\"a\": \"x\"})"},
    {TOOLS_BARE, false, false,
     "<|python_tag|>{\"name\": \"f\", \"parameters\": {\"a\":0.50}}; {\"name\":\"g\"}",
     "call:0:f({\"a\":0.50}) call:1:g({})"},
    {TOOLS_BARE, false, false, "{\"a\": 1}", "say:{\"a\": 1}"},
    {TOOLS_BARE, false, false, "Plain {text}", "say:Plain {text}"},
};

static void test_answers_in_all_pieces(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        for (size_t piece = 1; piece <= strlen(rows[i].text); piece++)
            check(&rows[i], piece);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_answers_in_all_pieces)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
