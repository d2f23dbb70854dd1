/* Where each byte of a rendered conversation comes from, through every operation of a template, and that
 * special tokens are parsed only where the template wrote them. NIBBLE_TEMPLATE_FOLDER names a folder with
 * more templates (*.jinja), such as models/templates of llama.cpp. */
#include "base/file.h"
#include "base/jsonx.h"
#include "base/mem.h"
#include "support/tempdir.h"
#include "jinja/template.h"
#include "tokenizer/tokenizer.h"

#include <dirent.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static nib_status render(const json_t *source, const json_t *variables, template_text *out, nib_error *err) {
    static const char tokens[] = "{\"bos_token\": \"<s>\", \"eos_token\": \"</s>\"}";
    template *t;
    json_t *own = json_loads(tokens, 0, NULL);
    nib_status status = template_parse(json_string_value(source), json_string_length(source), &t, err);
    if (status == NIB_OK) {
        status = template_render(t, own, variables, 0, out, err);
        template_free(t);
    }
    json_decref(own);
    return status;
}

/* ---- operations ---- */

static const char VARIABLES[] =
    "{\"a\": \"ab\", \"e\": \"<e>\", \"sp\": \" x y \", \"l\": [\"p\", \"qr\"], \"d\": {\"k\": \"v\", \"n\": "
    "1}, "
    "\"f\": \"%s{}\", \"u\": \"\\u00e9\\u00df\", \"nl\": \"p\\nq\", \"n\": 7, "
    "\"messages\": [{\"role\": \"user\", \"content\": \"c\"}, {\"role\": \"<r>\", \"content\": \"c\"}], "
    "\"bos_token\": \"no\"}";

/* marks: a character for each byte of the text, 'v': from a variable. */
static const struct {
    const char *source, *text, *marks;
} operations[] = {
    {"t{{ a }}t", "tabt", ".vv."},
    {"{{ 'x' + a + 'y' }}", "xaby", ".vv."},
    {"{{ 'x' ~ a ~ 1 }}", "xab1", ".vv."},
    {"{% set ns = namespace(s='') %}{% for c in l %}{% set ns.s = ns.s + '-' + c %}{% endfor %}{{ ns.s }}",
     "-p-qr", ".v.vv"},
    {"{% set x = '-' + a %}{% set y = x + 'z' %}{% set z = x + a %}{{ x }}{{ y }}{{ z }}", "-ab-abz-abab",
     ".vv.vv..vvvv"},
    {"{{ ('x' + a + 'y')[1:3] }}{{ ('x' + a)[0] }}{{ ('x' + a)[-1] }}{{ ('x' + a)[::-1] }}", "abxbbax",
     "vv.vvv."},
    {"{{ a * 2 }}{{ ('x' + a) * 2 }}", "ababxabxab", "vvvv.vv.vv"},
    {"{% for c in 'x' + a %}{{ c }}{% endfor %}", "xab", ".vv"},
    {"{{ ('x' + a) | list | join('-') }}", "x-a-b", "..v.v"},
    {"{{ '-'.join(l) }}{{ l | join(a) }}", "p-qrpabqr", "v.vvvvvvv"},
    {"{{ ('x' + a) | upper }}{{ ('x' + a).title() }}{{ (u + 'x') | upper }}", "XABXab\xC3\x89SSX",
     ".vv.vvvvvv."},
    {"{{ ('x' + a) | capitalize }}{{ ('x ' + a) | title }}{{ ('x' + a).swapcase() }}", "XabX AbXAB",
     ".vv..vv.vv"},
    {"{{ (' x' + sp) | trim }}{{ sp.strip() }}{{ sp.lstrip(' x') }}", "x x yx yy ", ".vvvvvvvvv"},
    {"{{ ('x' + a).replace('a', '<e>') }}{{ a | replace('b', 'x') }}{{ 'xyx' | replace('x', a) }}",
     "x<e>baxabyab", "....vv.vv.vv"},
    {"{{ ('x,' + a + ',y').split(',') | join('|') }}{{ (sp + 'z').split() | join('|') }}", "x|ab|yx|y|z",
     "..vv..v.v.."},
    {"{{ ('x,' + a).rsplit(',', 1)[1] }}{{ ('x,' + a).partition(',') | join }}{{ nl.splitlines()[1] }}",
     "abx,abq", "vv..vvv"},
    {"{{ ('x' + a).removeprefix('x') }}{{ (a + 'x').removesuffix('x') }}", "abab", "vvvv"},
    {"{{ a.ljust(4, '-') }}{{ a.center(4) }}{{ '7'.zfill(2) }}{{ ('x' + a) | center(5) }}", "ab-- ab 07 xab ",
     "vv...vv.....vv."},
    {"{{ ('x' + a) | reverse }}{{ a | first }}{{ a | last }}", "baxab", "vv.vv"},
    {"{{ 'x%s|%r|%5s' | format(a, a, a) }}", "xab|'ab'|   ab", ".vv..vv.....vv"},
    {"{{ f % 'x' }}{{ f.format('x') }}{{ '{}-{:>3}'.format(a, a) }}", "x{}%sxab- ab", ".vvvv.vv..vv"},
    {"{{ '%(k)s=%(n)d' % d }}", "v=1", "v.."},
    {"{{ a | tojson }}{{ {'x': e} | tojson }}", "\"ab\"{\"x\": \"<e>\"}", ".vv........vvv.."},
    {"{{ nl | tojson }}{{ d | tojson }}", "\"p\\nq\"{\"k\": \"v\", \"n\": 1}", ".vvvv...v....v....v....."},
    {"{{ d }}{{ l }}", "{'k': 'v', 'n': 1}['p', 'qr']", "..v....v....v.......v....vv.."},
    {"{% for k, v in d.items() %}{{ k }}={{ v }};{% endfor %}", "k=v;n=1;", "v.v.v..."},
    {"{% set x %}-{{ a }}-{% endset %}{{ x | trim('-') }}", "ab", "vv"},
    {"{% macro m(x) %}[{{ x }}]{% endmacro %}{{ m(a) }}{{ m('x') | upper }}", "[ab][X]", ".vv...."},
    {"{% filter upper %}x{{ a }}{% endfilter %}", "XAB", ".vv"},
    {"{{ e | escape }}{{ (e ~ '>') | escape }}", "&lt;e&gt;&lt;e&gt;&gt;", "vvvvvvvvvvvvvvvvvv...."},
    {"{{ ('x ' + nl) | indent(1) }}", "x p\n q", "..v..v"},
    {"{{ ('xyz ' + a * 9) | truncate(8, true, '..', 0) }}", "xyz ab..", "....vv.."},
    {"{{ l | map('upper') | join }}{{ l | sort | join }}{{ l | max }}", "PQRpqrqr", "vvvvvvvv"},
    {"{{ a | default('x') }}{{ q | default('x') }}{{ q | default(a) }}", "abxab", "vv.vv"},
    {"{{ a | string }}{{ a | safe }}{{ n }}{{ l | length }}", "abab72", "vvvv.."},
    {"{{ dict(x=a).x }}{{ (a, 'x') | join }}{{ [a] + ['x'] }}", "ababx['ab', 'x']", "vvvv...vv......."},
    {"{{ bos_token }}", "<s>", "..."},
    {"{{ '<|' + messages[0].role + '|>' + messages[0].content }}", "<|user|>c", "........v"},
    {"{{ '<|' + messages[1].role + '|>' }}", "<|<r>|>", "..vvv.."},
    {"{% if a == 'ab' and 'b' in a and a.startswith('a') %}{{ a }}{% endif %}", "ab", "vv"},
};

static void operations_keep_marks(void **state) {
    (void)state;
    json_t *variables = json_loads(VARIABLES, 0, NULL);
    int bad = 0;
    for (size_t i = 0; i < sizeof operations / sizeof *operations; i++) {
        template_text out = {0};
        nib_error err = {.message = ""};
        json_t *source = json_string(operations[i].source);
        const nib_status status = render(source, variables, &out, &err);
        char marks[256] = "";
        for (size_t k = 0; status == NIB_OK && k < out.n_byte && k + 1 < sizeof marks; k++)
            marks[k] = out.mark[k] ? 'v' : '.';
        const char *want = operations[i].text;
        if (want ? status != NIB_OK || strcmp(out.text, want) != 0 || strcmp(marks, operations[i].marks) != 0
                 : status == NIB_OK) {
            fprintf(stderr, "%s\n  %s\n  %s (wanted %s)\n", operations[i].source,
                    status ? err.message : out.text, marks, operations[i].marks);
            bad++;
        }
        template_text_clear(&out);
        json_decref(source);
    }
    json_decref(variables);
    assert_int_equal(bad, 0);
}

/* ---- templates of model families ---- */

static const char *const specials[] = {
    "<s>",
    "</s>",
    "<|im_start|>",
    "<|im_end|>",
    "<|endoftext|>",
    "<|user|>",
    "<|assistant|>",
    "<|system|>",
    "<|end|>",
    "<|tool|>",
    "[INST]",
    "[/INST]",
    "[TOOL_CALLS]",
    "[TOOL_RESULTS]",
    "[/TOOL_RESULTS]",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|start_header_id|>",
    "<|end_header_id|>",
    "<|begin_of_text|>",
    "<bos>",
    "<eos>",
    "<start_of_turn>",
    "<end_of_turn>",
    "<|im_sep|>",
    "<|observation|>",
    "<|start_of_role|>",
    "<|end_of_role|>",
    "<|end_of_text|>",
    "<|action_start|>",
    "<|action_end|>",
    "<|plugin|>",
    "<|START_OF_TURN_TOKEN|>",
    "<|END_OF_TURN_TOKEN|>",
    "<|USER_TOKEN|>",
    "<|CHATBOT_TOKEN|>",
    "<|SYSTEM_TOKEN|>",
    "<｜User｜>",
    "<｜Assistant｜>",
    "<｜end▁of▁sentence｜>",
    "<|python_tag|>",
    "<|tool_call|>",
    "[gMASK]",
    "<sop>",
    "<|user",
};
enum { N_SPECIAL = sizeof specials / sizeof *specials, N_BYTE = 256 };

/* A tokenizer of bytes with the special tokens: ids of bytes are below N_BYTE. normal: it finds them in the
 * normalised text, in which blanks are underscores. */
static tokenizer *open_tokenizer(bool normal) {
    json_t *vocab = json_object(), *added = json_array();
    for (int b = 0, more = 0; b < N_BYTE; b++) { /* as GPT-2 writes bytes */
        const bool shown = (b >= 33 && b < 127) || (b >= 161 && b < 173) || b >= 174;
        const int c = shown ? b : N_BYTE + more++;
        const char utf8[3] = {(char)(c < 128 ? c : 0xC0 | c >> 6), (char)(c < 128 ? 0 : 0x80 | (c & 63)), 0};
        json_object_set_new(vocab, utf8, json_integer(b));
    }
    for (int i = 0; i < N_SPECIAL; i++) {
        json_object_set_new(vocab, specials[i], json_integer(N_BYTE + i));
        json_array_append_new(added, json_pack("{s:i, s:s, s:b, s:b}", "id", N_BYTE + i, "content",
                                               specials[i], "special", 1, "normalized", normal));
    }
    json_t *bytes = json_pack("{s:s, s:b, s:b}", "type", "ByteLevel", "add_prefix_space", 0, "use_regex", 1);
    json_t *root =
        json_pack("{s:s, s:o, s:O, s:o, s:{s:s, s:o, s:[]}}", "version", "1.0", "added_tokens", added,
                  "pre_tokenizer", bytes, "decoder", bytes, "model", "type", "BPE", "vocab", vocab, "merges");
    if (normal)
        json_object_set_new(
            root, "normalizer",
            json_pack("{s:s, s:{s:s}, s:s}", "type", "Replace", "pattern", "String", " ", "content", "_"));
    char *text = jsonx_text(root, 0);
    tokenizer *t;
    nib_error err;
    if (tokenizer_open_json(text, strlen(text), NULL, 0, &t, &err))
        fail_msg("%s", err.message);
    mem_free(text);
    json_decref(root);
    return t;
}

static token_list encode(const tokenizer *t, const template_text *text, const uint8_t *mark) {
    token_list out = {0};
    nib_error err;
    if (tokenizer_encode_marked(t, text->text, mark, text->n_byte, TOKENIZE_SPECIAL, &out, &err))
        fail_msg("%s", err.message);
    return out;
}

/* Keeps the special tokens of a list alone. */
static void keep_special(token_list *l) {
    size_t n = 0;
    for (size_t i = 0; i < l->n; i++)
        if (l->data[i] >= N_BYTE)
            l->data[n++] = l->data[i];
    l->n = n;
}

static bool same_tokens(const token_list *a, const token_list *b) {
    return a->n == b->n && (!a->n || memcmp(a->data, b->data, a->n * sizeof *a->data) == 0);
}

/* A copy in which every text, every name of a member under `deep` and every text that stands for them ends
 * with all special tokens. Roles stay, and ids, whose length a template may check. */
static json_t *poisoned(const json_t *v, const char *key, const char *poison, bool names) {
    const char *name;
    json_t *each, *out;
    size_t i;
    if (json_is_string(v))
        return !strcmp(key, "role") || !strcmp(key, "id") || !strcmp(key, "tool_call_id") ||
                       !strcmp(key, "type")
                   ? json_copy((json_t *)(uintptr_t)v)
                   : json_sprintf("%s%s", json_string_value(v), poison);
    if (json_is_array(v)) {
        out = json_array();
        json_array_foreach(v, i, each) json_array_append_new(out, poisoned(each, key, poison, names));
        return out;
    }
    if (!json_is_object(v))
        return json_deep_copy(v);
    out = json_object();
    json_object_foreach((json_t *)(uintptr_t)v, name, each) {
        char *made = NULL;
        const bool arguments = names && (!strcmp(key, "arguments") || !strcmp(key, "properties"));
        if (arguments && asprintf(&made, "%s%s", name, poison) < 0)
            fail_msg("no memory");
        json_object_set_new(out, made ? made : name, poisoned(each, name, poison, names));
        free(made);
    }
    return out;
}

typedef struct counts {
    int rendered, attacked, parsed;
    char why[512]; /* the last conversation was refused */
} counts;

static void check_case(const tokenizer *t, const json_t *source, const json_t *variables, const char *poison,
                       const char *where, counts *n) {
    template_text clean = {0}, dirty = {0};
    nib_error err;
    if (render(source, variables, &clean, &err)) {
        snprintf(n->why, sizeof n->why, "%s", err.message);
        return;
    }
    n->rendered++;
    token_list plain = encode(t, &clean, NULL), kept = encode(t, &clean, clean.mark);
    if (!same_tokens(&plain, &kept))
        fail_msg("%s: the tokens of a conversation without special tokens changed", where);
    for (int names = 0; names < 2; names++) {
        json_t *worse = poisoned(variables, "", poison, names);
        if (render(source, worse, &dirty, &err) == NIB_OK) {
            token_list all = encode(t, &dirty, NULL), marked = encode(t, &dirty, dirty.mark);
            n->attacked++;
            keep_special(&all);
            keep_special(&marked);
            keep_special(&kept);
            n->parsed += all.n > marked.n;
            if (!same_tokens(&kept, &marked))
                fail_msg("%s: %zu special tokens, with special tokens in all values %zu:\n%s", where, kept.n,
                         marked.n, dirty.text);
            token_list_clear(&all);
            token_list_clear(&marked);
            template_text_clear(&dirty);
        }
        json_decref(worse);
    }
    token_list_clear(&plain);
    token_list_clear(&kept);
    template_text_clear(&clean);
}

static void values_are_never_special(void **state) {
    (void)state;
    tokenizer *t = open_tokenizer(false);
    char poison[2048] = " ";
    for (int i = 0; i < N_SPECIAL; i++)
        strcat(poison, specials[i]);
    counts n = {0};
    int n_template = 0;
    DIR *dir = opendir("tests/data/templates");
    assert_non_null(dir);
    for (struct dirent *e; (e = readdir(dir));) {
        char path[400];
        json_t *data, *each;
        nib_error err;
        size_t i;
        if (!strstr(e->d_name, ".json"))
            continue;
        snprintf(path, sizeof path, "tests/data/templates/%s", e->d_name);
        if (jsonx_load(path, 64u << 20, &data, &err))
            fail_msg("%s", err.message);
        n_template += json_object_get(data, "template") != NULL;
        json_array_foreach(json_object_get(data, "cases"), i, each) check_case(
            t, json_object_get(data, "template"), json_object_get(each, "variables"), poison, path, &n);
        json_decref(data);
    }
    closedir(dir);
    tokenizer_close(t);
    assert_true(n_template >= 20 && n.rendered > 250 && n.attacked > 500 && n.parsed > 450);
}

/* What a template may be given: with and without a system message, tools, and calls. */
static const char *const conversations[] = {
    "{\"functions\":\"[]\",\"datetime\":\"now\",\"messages\":[{\"role\":\"user\",\"content\":\"Why?\"}],"
    "\"add_generation_prompt\":true}",
    "{\"messages\":[{\"role\":\"system\",\"content\":\"Be brief.\"},{\"role\":\"user\",\"content\":\"Why?\"},"
    "{\"role\":\"assistant\",\"content\":\"So.\"},{\"role\":\"user\",\"content\":\"And?\"}],"
    "\"add_generation_prompt\":true}",
    "{\"messages\":[{\"role\":\"user\",\"content\":\"Rain?\"}],\"add_generation_prompt\":true,\"tools\":[{"
    "\"type\":\"function\",\"function\":{\"name\":\"f\",\"description\":\"d\",\"parameters\":{\"type\":"
    "\"object\","
    "\"properties\":{\"a\":{\"type\":\"string\",\"description\":\"e\"}},\"required\":[\"a\"]}}}]}",
    "{\"messages\":[{\"role\":\"user\",\"content\":\"Rain?\"},{\"role\":\"assistant\",\"content\":\"I "
    "look.\","
    "\"tool_calls\":[{"
    "\"id\":\"abcdefghi\",\"type\":\"function\",\"function\":{\"name\":\"f\",\"arguments\":{\"a\":\"b\"}}}]},"
    "{"
    "\"role\":\"tool\",\"tool_call_id\":\"abcdefghi\",\"name\":\"f\",\"content\":\"yes\"}],"
    "\"add_generation_prompt\":true}",
};

/* Writes the tree's own templates as files, as NIBBLE_TEMPLATE_FOLDER may have them. */
static const char *folder_of_our_own(void) {
    DIR *dir = opendir("tests/data/templates");
    assert_non_null(dir);
    for (struct dirent *e; (e = readdir(dir));) {
        char path[400], name[300];
        json_t *data;
        if (!strstr(e->d_name, ".json"))
            continue;
        snprintf(path, sizeof path, "tests/data/templates/%s", e->d_name);
        snprintf(name, sizeof name, "%.*s.jinja", (int)(strlen(e->d_name) - 5), e->d_name);
        assert_int_equal(jsonx_load(path, 64u << 20, &data, NULL), NIB_OK);
        const json_t *source = json_object_get(data, "template");
        if (source)
            temp_file(name, json_string_value(source), json_string_length(source));
        json_decref(data);
    }
    closedir(dir);
    return temp_path("");
}

/* Every template of a folder renders one of the conversations, and what messages contain stays text. */
static void templates_of_a_folder(void **state) {
    (void)state;
    const char *given = getenv("NIBBLE_TEMPLATE_FOLDER"), *folder = given ? given : folder_of_our_own();
    tokenizer *t = open_tokenizer(false);
    char poison[2048] = " ";
    counts all = {0};
    int n_template = 0, n_bad = 0;
    for (int i = 0; i < N_SPECIAL; i++)
        strcat(poison, specials[i]);
    DIR *dir = opendir(folder);
    assert_non_null(dir);
    for (struct dirent *e; (e = readdir(dir));) {
        char path[1500], *text;
        size_t n_byte;
        counts n = {0};
        if (!strstr(e->d_name, ".jinja"))
            continue;
        snprintf(path, sizeof path, "%s/%s", folder, e->d_name);
        assert_int_equal(file_read_all(path, 1 << 20, &text, &n_byte, NULL), NIB_OK);
        json_t *source = json_stringn(text, n_byte);
        for (size_t i = 0; i < sizeof conversations / sizeof *conversations; i++) {
            json_t *variables = json_loads(conversations[i], 0, NULL);
            check_case(t, source, variables, poison, path, &n);
            json_decref(variables);
        }
        json_decref(source);
        mem_free(text);
        n_template++;
        n_bad += n.rendered == 0;
        if (n.rendered == 0)
            fprintf(stderr, "%s renders no conversation: %s\n", path, n.why);
        all.rendered += n.rendered;
        all.attacked += n.attacked;
    }
    closedir(dir);
    tokenizer_close(t);
    print_message("%d templates, %d conversations, %d with special tokens in their values\n", n_template,
                  all.rendered, all.attacked);
    assert_true(n_template > 0 && (given || n_template >= 20));
    assert_int_equal(n_bad, 0);
}

static void marks_hold_through_a_normalizer(void **state) {
    (void)state;
    static const char text[] = "<s> a </s>b</s> c", marks[] = "....vvvvvvv......";
    static const int32_t want[] = {N_BYTE, '_', 'a', '_', '<', '/', 's', '>', 'b', N_BYTE + 1, '_', 'c'};
    tokenizer *t = open_tokenizer(true);
    uint8_t mark[sizeof text];
    nib_error err;
    token_list got = {0};
    for (size_t i = 0; i < sizeof text - 1; i++)
        mark[i] = marks[i] == 'v';
    assert_int_equal(tokenizer_encode_marked(t, text, mark, sizeof text - 1, TOKENIZE_SPECIAL, &got, &err),
                     NIB_OK);
    assert_int_equal(got.n, sizeof want / sizeof *want);
    assert_memory_equal(got.data, want, sizeof want);
    token_list_clear(&got);
    tokenizer_close(t);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(operations_keep_marks),
        cmocka_unit_test(values_are_never_special),
        cmocka_unit_test(templates_of_a_folder),
        cmocka_unit_test(marks_hold_through_a_normalizer),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
