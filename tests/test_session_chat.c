/* nib_chat_render: the template of a folder, the variables that it may read, and its errors. */
#include "nib.h"
#include "support/tempdir.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include <cmocka.h>

/* Its text with these messages, caller frees with nib_free; NULL and *err when it fails. */
static nib_engine *open_with(const char *source, nib_error *err) {
    nib_engine_options o;
    nib_engine *e;
    memset(err, 0, sizeof *err);
    static const char config[] = "{\"model_type\": \"llama\"}";
    static const char empty[] = "\2\0\0\0\0\0\0\0{}"; /* a safetensors file without tensors */
    mkdir(temp_path("chat"), 0700);
    temp_file("chat/config.json", config, sizeof config - 1);
    temp_file("chat/model.safetensors", empty, sizeof empty - 1);
    temp_file("chat/chat_template.jinja", source, strlen(source));
    nib_engine_options_init(&o);
    o.vocab_only = true;
    if (nib_engine_open(temp_path("chat"), &o, &e, err))
        fail_msg("%s", err->message);
    return e;
}

static char *render(const char *source, const char *messages, nib_error *err) {
    char *text = NULL;
    nib_engine *e = open_with(source, err);
    if (nib_chat_render(e, messages, NULL, true, &text, err))
        text = NULL;
    nib_engine_close(e);
    return text;
}

static void check_text(const char *source, const char *messages, const char *want) {
    nib_error err;
    char *text = render(source, messages, &err);
    if (!text)
        fail_msg("%s", err.message);
    assert_string_equal(text, want);
    nib_free(text);
}

static void thoughts_have_two_names(void **state) {
    (void)state;
    static const char other[] = "{% for m in messages %}[{{ m.reasoning_content }}]{% endfor %}";
    static const char one[] = "{% for m in messages %}[{{ m.thinking }}]{% endfor %}";
    static const char messages[] = "[{\"role\":\"user\",\"content\":\"q\"},"
                                   "{\"role\":\"assistant\",\"content\":\"a\",\"thinking\":\"t\"},"
                                   "{\"role\":\"assistant\",\"content\":\"b\",\"reasoning_content\":\"r\"},"
                                   "{\"role\":\"assistant\",\"thinking\":\"x\",\"reasoning_content\":\"y\"}]";
    check_text(other, messages, "[][t][r][y]");
    check_text(one, messages, "[][t][r][x]");
    /* a message that did not think has neither */
    check_text("{{ 'thinking' in messages[0] }}", messages, "False");
    check_text("{{ messages[0].thinking is defined }}", "[{\"role\":\"user\",\"thinking\":null}]", "True");
}

/* The caller's variables reach the template; they cannot replace its own. */
static void more_variables(void **state) {
    (void)state;
    static const char source[] =
        "{{ 'none' if effort is not defined else effort }}{{ add_generation_prompt }}";
    static const struct {
        const char *variables, *want;
    } rows[] = {{NULL, "noneTrue"},
                {"{}", "noneTrue"},
                {"{\"effort\":\"low\",\"other\":[1]}", "lowTrue"},
                {"{\"add_generation_prompt\":false}", NULL},
                {"{\"bos_token\":\"x\"}", NULL},
                {"[]", NULL},
                {"{", NULL}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        nib_error err;
        char *text = NULL, *own = NULL;
        uint8_t *marks = NULL;
        nib_engine *e = open_with(source, &err);
        const nib_status status =
            nib_chat_render_marked(e, "[]", NULL, rows[i].variables, true, &text, &marks, &err);
        assert_true((status == NIB_OK) == (rows[i].want != NULL));
        if (rows[i].want)
            assert_string_equal(text, rows[i].want);
        else
            assert_int_equal(status, NIB_E_USAGE);
        assert_int_equal(nib_chat_template(e, &own, &err), NIB_OK);
        assert_string_equal(own, source);
        nib_free(own);
        nib_free(text);
        nib_free(marks);
        nib_engine_close(e);
    }
}

/* Every fault in a template is an error with a message. */
static void a_template_that_fails(void **state) {
    (void)state;
    static const char *const sources[] = {
        "{{ raise_exception('not like this') }}",
        "{% for m in messages %}{{ m.content }}",
        "{{ messages[0].content | no_such_filter }}",
        "{{ no_such_function() }}",
        "{{ messages[0].content + 1 }}",
        "{% for a in range(100000) %}{% for b in range(100000) %}{{ 'xxxxxxxx' }}{% endfor %}{% endfor %}",
        "{% macro f(x) %}{{ f(x) }}{% endmacro %}{{ f(1) }}",
        "{{ 'x' * 10000000000 }}",
        "{{ 1 // 0 }}",
        "{% include 'config.json' %}",
        "{{ ",
    };
    for (size_t i = 0; i < sizeof sources / sizeof *sources; i++) {
        nib_error err;
        char *text = render(sources[i], "[{\"role\":\"user\",\"content\":\"q\"}]", &err);
        if (text)
            fail_msg("%s: expected an error, found '%.40s'", sources[i], text);
        assert_true(err.status != NIB_OK);
        assert_true(strlen(err.message) > 8);
    }
}

static void messages_that_are_none(void **state) {
    (void)state;
    static const char *const messages[] = {"", "{}", "[", "null", "[1,]"};
    nib_error nul;
    assert_null(render("{{ messages[0] }}", "[\"a\\u0000b\"]", &nul));
    assert_int_equal(nul.status, NIB_E_USAGE);
    for (size_t i = 0; i < sizeof messages / sizeof *messages; i++) {
        nib_error err;
        char *text = render("x", messages[i], &err);
        assert_null(text);
        assert_int_equal(err.status, NIB_E_USAGE);
    }
    check_text("{{ messages | length }}", "[1, \"two\", null, []]", "4"); /* the template's business */
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(thoughts_have_two_names),
        cmocka_unit_test(more_variables),
        cmocka_unit_test(a_template_that_fails),
        cmocka_unit_test(messages_that_are_none),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
