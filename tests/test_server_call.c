/* The body of a request: the parsed call, and the errors of wrong bodies. cli_serve.sh tests this over HTTP.
 */
#include "server/job.h"

#include "base/mem.h"
#include "support/faults.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define CHAT "\"messages\":[{\"role\":\"user\",\"content\":\"Why?\"}]"

static server_defaults usual;

static bool read_text(call_kind kind, const char *text, call *c, fault *why) {
    *why = (fault){0};
    return call_parse(kind, text, strlen(text), &usual, c, why);
}

static void test_everything_is_read(void **state) {
    call c;
    fault why;
    (void)state;
    assert_true(
        read_text(CALL_CHAT,
                  "{" CHAT ",\"temperature\":0.25,\"top_p\":0.5,\"top_k\":7,\"min_p\":0.125,\"seed\":-3,"
                  "\"n\":2,\"max_completion_tokens\":11,\"stop\":[\"a\",\"bc\"],\"stream\":true,"
                  "\"frequency_penalty\":-1,\"presence_penalty\":1.5,\"ignore_eos\":true,"
                  "\"stream_options\":{\"include_usage\":true},\"response_format\":{\"type\":\"text\"}}",
                  &c, &why));
    assert_float_equal(c.sampling.temperature, 0.25, 0);
    assert_float_equal(c.sampling.top_p, 0.5, 0);
    assert_float_equal(c.sampling.min_p, 0.125, 0);
    assert_float_equal(c.sampling.frequency_penalty, -1, 0);
    assert_float_equal(c.sampling.presence_penalty, 1.5, 0);
    assert_int_equal(c.sampling.top_k, 7);
    assert_true(c.has_seed && c.stream && c.usage && c.ignore_eos);
    assert_int_equal(c.seed, -3);
    assert_int_equal(c.n, 2);
    assert_int_equal(c.max_tokens, 11);
    assert_int_equal(c.n_stop, 2);
    assert_string_equal(c.stop[1], "bc");
    call_clear(&c);
}

/* The samplers of all APIs, by llama-server's names. */
static void test_samplers(void **state) {
#define SAMPLERS                                                                                             \
    "\"typical_p\":0.5,\"top_n_sigma\":2,\"xtc_probability\":0.25,\"xtc_threshold\":0.125,"                  \
    "\"dynatemp_range\":0.5,\"dynatemp_exponent\":2,\"mirostat\":2,\"mirostat_tau\":4,"                      \
    "\"mirostat_eta\":0.5,\"dry_multiplier\":0.75,\"dry_base\":1.5,\"dry_allowed_length\":3,"                \
    "\"dry_penalty_last_n\":-1,\"dry_sequence_breakers\":[\"x\",\"yz\"]"
    static const char openai[] = "{" CHAT "," SAMPLERS "}", responses[] = "{\"input\":\"a\"," SAMPLERS "}",
                      anthropic[] = "{" CHAT ",\"max_tokens\":1," SAMPLERS "}",
                      ollama[] = "{" CHAT ",\"options\":{" SAMPLERS "}}";
    (void)state;
    for (int api = 0; api < 4; api++) {
        call c;
        fault why = {0};
        assert_true(api == 0   ? read_text(CALL_CHAT, openai, &c, &why)
                    : api == 1 ? call_parse_responses(responses, strlen(responses), &usual, &c, &why)
                    : api == 2 ? call_parse_anthropic(anthropic, strlen(anthropic), true, &usual, &c, &why)
                               : call_parse_ollama_chat(ollama, strlen(ollama), &usual, &c, &why));
        const nib_sampling *s = &c.sampling;
        assert_true(s->typical_p == 0.5f && s->top_n_sigma == 2 && s->xtc_probability == 0.25f &&
                    s->xtc_threshold == 0.125f && s->dynatemp_range == 0.5f && s->dynatemp_exponent == 2);
        assert_true(s->mirostat == 2 && s->mirostat_tau == 4 && s->mirostat_eta == 0.5f);
        assert_true(s->dry_multiplier == 0.75f && s->dry_base == 1.5f && s->dry_allowed_length == 3 &&
                    s->dry_window == -1 && s->n_dry_breaker == 2);
        assert_string_equal(s->dry_breakers[1], "yz");
        call_clear(&c);
    }
}

static void test_defaults(void **state) {
    call c;
    fault why;
    (void)state;
    assert_true(read_text(CALL_CHAT, "{" CHAT ",\"temperature\":null,\"what\":{}}", &c, &why));
    assert_float_equal(c.sampling.temperature, usual.sampling.temperature, 0);
    assert_true(!c.has_seed && !c.stream && !c.usage && c.n == 1 && c.max_tokens == -1 && c.n_stop == 0);
    call_clear(&c);
    assert_true(read_text(CALL_COMPLETION, "{\"prompt\":\"a\",\"top_p\":0}", &c, &why));
    assert_true(c.sampling.top_p > 0 && c.sampling.top_p < 1e-6f); /* the likeliest alone */
    call_clear(&c);
}

/* A server's own defaults are for what a request leaves out. */
static void test_defaults_of_the_server(void **state) {
    static const char *const breakers[] = {"x"};
    const server_defaults before = usual;
    call c;
    fault why;
    (void)state;
    usual = (server_defaults){.max_tokens = 7, .seed = 5, .ignore_eos = true};
    nib_sampling_init(&usual.sampling);
    usual.sampling.temperature = 0.25f;
    usual.sampling.top_k = 3;
    usual.sampling.dry_breakers = breakers;
    usual.sampling.n_dry_breaker = 1;
    assert_true(read_text(CALL_CHAT, "{" CHAT ",\"top_k\":9}", &c, &why));
    assert_true(c.sampling.temperature == 0.25f && c.sampling.top_k == 9 && c.max_tokens == 7);
    assert_true(c.has_seed && c.seed == 5 && c.ignore_eos && c.sampling.n_dry_breaker == 1);
    call_clear(&c);
    assert_true(read_text(CALL_CHAT,
                          "{" CHAT ",\"max_tokens\":2,\"seed\":6,\"ignore_eos\":false,\"temperature\":1,"
                          "\"dry_sequence_breakers\":[\"y\",\"z\"]}",
                          &c, &why));
    assert_true(c.sampling.temperature == 1 && c.max_tokens == 2 && c.seed == 6 && !c.ignore_eos);
    assert_int_equal(c.sampling.n_dry_breaker, 2);
    call_clear(&c);
    usual = before;
}

static void test_order_of_samplers(void **state) {
    call c;
    fault why;
    (void)state;
    assert_true(
        read_text(CALL_CHAT, "{" CHAT ",\"samplers\":[\"temperature\",\"top-k\",\"typ_p\"]}", &c, &why));
    assert_string_equal(c.sampling.samplers, "tky");
    call_clear(&c);
    assert_true(read_text(CALL_COMPLETION, "{\"prompt\":\"a\",\"samplers\":\"edskypmxt\"}", &c, &why));
    assert_string_equal(c.sampling.samplers, "edskypmxt");
    call_clear(&c);
    static const char *const wrong[] = {
        "[]", "\"\"", "\"kq\"", "[\"infill\"]", "[1]", "{}", "\"kkkkkkkkkkkkkkkk\"", "[\"adaptive_p\"]"};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        char text[200];
        snprintf(text, sizeof text, "{" CHAT ",\"samplers\":%s}", wrong[i]);
        assert_false(read_text(CALL_CHAT, text, &c, &why));
        assert_string_equal(why.param, "samplers");
        call_clear(&c);
    }
}

/* What the clients of other servers send for "none" and "the usual". */
static void test_values_of_others(void **state) {
    call c;
    fault why;
    (void)state;
    assert_true(read_text(CALL_CHAT,
                          "{" CHAT ",\"max_tokens\":-1,\"top_k\":-1,\"best_of\":1,\"length_penalty\":1.0,"
                          "\"skip_special_tokens\":true,\"bad_words\":[],\"modalities\":[\"text\"],"
                          "\"guided_choice\":[\"a\\\"b\",\"c\"]}",
                          &c, &why));
    assert_true(c.max_tokens == -1 && c.sampling.top_k == 0 && !c.continues);
    assert_string_equal(c.grammar, "root ::= \"a\\x22b\" | \"c\"\n");
    call_clear(&c);
    assert_true(read_text(CALL_COMPLETION, "{\"prompt\":\"a\",\"max_tokens\":0,\"min_tokens\":0}", &c, &why));
    assert_int_equal(c.max_tokens, 0);
    call_clear(&c);
    assert_true(read_text(CALL_CHAT, "{" CHAT ",\"continue_final_message\":true}", &c, &why));
    assert_true(c.continues && c.no_new_turn);
    call_clear(&c);
}

static void test_messages_become_texts(void **state) {
    call c;
    fault why;
    (void)state;
    assert_true(
        read_text(CALL_CHAT,
                  "{\"messages\":[{\"role\":\"developer\",\"content\":[{\"type\":\"text\",\"text\":\"a\"},"
                  "{\"type\":\"text\",\"text\":\"b\"}],\"name\":\"x\"},"
                  "{\"role\":\"assistant\",\"tool_calls\":[{}]}]}",
                  &c, &why));
    const json_t *first = json_array_get(c.messages, 0), *second = json_array_get(c.messages, 1);
    assert_string_equal(json_string_value(json_object_get(first, "role")), "system");
    assert_string_equal(json_string_value(json_object_get(first, "content")), "ab");
    assert_string_equal(json_string_value(json_object_get(first, "name")), "x");
    assert_string_equal(json_string_value(json_object_get(second, "content")), "");
    call_clear(&c);
}

static void test_prompts(void **state) {
    static const struct {
        const char *text;
        size_t n;
    } rows[] = {
        {"{\"prompt\":\"a\"}", 1}, {"{\"prompt\":[1,2]}", 1}, {"{\"prompt\":[\"a\",[1,2],\"b\"]}", 3}};
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        call c;
        fault why;
        assert_true(read_text(CALL_COMPLETION, rows[i].text, &c, &why));
        assert_int_equal(json_array_size(c.prompts), rows[i].n);
        call_clear(&c);
    }
}

static void test_what_is_wrong_is_named(void **state) {
    static const struct {
        const char *text, *param, *says;
    } rows[] = {
        {"{" CHAT ",\"temperature\":\"1\"}", "temperature", "expected a number from 0 to 2, found a string"},
        {"{" CHAT ",\"temperature\":2.5}", "temperature", "found 2.5"},
        {"{" CHAT ",\"top_k\":1.5}", "top_k", "expected a whole number from -1 to 16777216, found 1.5"},
        {"{" CHAT ",\"n\":17}", "n", "from 1 to 16"},
        {"{" CHAT ",\"typical_p\":2}", "typical_p", "from 0 to 1"},
        {"{" CHAT ",\"mirostat\":3}", "mirostat", "from 0 to 2"},
        {"{" CHAT ",\"xtc_probability\":\"1\"}", "xtc_probability", "found a string"},
        {"{" CHAT ",\"dry_sequence_breakers\":[]}", "dry_sequence_breakers", "1 to 64 strings"},
        {"{" CHAT ",\"dry_sequence_breakers\":[1]}", "dry_sequence_breakers", "1 to 40 bytes"},
        {"{" CHAT ",\"samplers\":[\"infill\"]}", "samplers", "found 'infill'"},
        {"{" CHAT ",\"seed\":1e300}", "seed", "expected a whole number"},
        {"{" CHAT ",\"stop\":[1]}", "stop", "found a number"},
        {"{" CHAT ",\"stream\":\"yes\"}", "stream", "expected true or false"},
        {"{" CHAT ",\"stream_options\":[]}", "stream_options", "expected an object"},
        {"{" CHAT ",\"tool_choice\":\"always\",\"tools\":[{}]}", "tool_choice", "expected"},
        {"{" CHAT ",\"min_tokens\":4,\"max_tokens\":3}", "min_tokens", "at most max_tokens, which is 3"},
        {"{" CHAT ",\"max_tokens\":0}", "max_tokens", "found 0"},
        {"{" CHAT ",\"top_k\":-2}", "top_k", "from -1"},
        {"{" CHAT ",\"continue_final_message\":true,\"add_generation_prompt\":true}", "add_generation_prompt",
         "expected false"},
        {"{" CHAT ",\"tools\":[{\"type\":\"custom\",\"custom\":{}}]}", "tools[0].type", "not supported"},
        {"{" CHAT ",\"tools\":[{}],\"tool_choice\":{\"type\":\"allowed_tools\"}}", "tool_choice", "as mode"},
        {"{" CHAT ",\"guided_regex\":\"a\"}", "guided_regex", "not supported"},
        {"{" CHAT ",\"guided_choice\":[\"\"]}", "guided_choice", "not empty"},
        {"{" CHAT ",\"structured_outputs\":{\"regex\":\"a\"}}", "structured_outputs.regex", "not supported"},
        {"{" CHAT ",\"best_of\":2}", "best_of", "not supported"},
        {"{" CHAT ",\"skip_special_tokens\":false}", "skip_special_tokens", "not supported"},
        {"{" CHAT ",\"logit_bias\":{\" 1\":1}}", "logit_bias", "a token's id"},
        {"{" CHAT ",\"logit_bias\":{\"-1\":1}}", "logit_bias", "a token's id"},
        {"{" CHAT ",\"tools\":[{\"function\":[]}]}", "tools[0].function.name", "found nothing"},
        {"{" CHAT ",\"tools\":[{\"function\":{\"name\":1}}]}", "tools[0].function.name", "a number"},
        {"{" CHAT ",\"tools\":[{},{\"function\":{\"name\":\"f\",\"parameters\":[]}}]}",
         "tools[1].function.parameters", "an array"},
        {"{" CHAT ",\"tool_choice\":\"required\"}", "tool_choice", "expected tools to choose from"},
        {"{" CHAT ",\"tool_choice\":{\"function\":{\"name\":\"f\"}},\"tools\":[{}]}", "tool_choice",
         "found 'f'"},
        {"{" CHAT ",\"grammar\":1}", "grammar", "as a string"},
        {"{" CHAT ",\"grammar\":\"x\",\"json_schema\":{\"a\":1}}", "grammar", "only one format"},
        {"{" CHAT ",\"response_format\":{\"type\":\"strange\"}}", "response_format", "expected"},
        {"{" CHAT
         ",\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{\"schema\":{\"not\":{}}}}}",
         "response_format", "'not' is not supported"},
        {"{" CHAT ",\"reasoning_format\":\"loud\"}", "reasoning_format", "expected"},
        {"{\"messages\":[1]}", "messages[0]", "expected an object"},
        {"{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"image_url\"}]}]}", "messages[0].content",
         "only text"},
        {"{\"messages\":[{\"role\":\"a%s%n\",\"content\":\"\"}]}", "messages[0].role", "found 'a%s%n'"},
        {"{\"messages\":{}}", "messages", "found an object"},
        {"[1]", "", "expected an object, found an array"},
        {"{", "", "is not valid JSON"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        call c;
        fault why;
        assert_false(read_text(CALL_CHAT, rows[i].text, &c, &why));
        assert_int_equal(why.status, 400);
        assert_string_equal(why.param, rows[i].param);
        assert_non_null(strstr(why.message, rows[i].says));
        call_clear(&c);
    }
}

/* Memory may be missing: the error has a reason, and nothing leaks. */
static void test_no_memory(void **state) {
    static const char text[] = "{" CHAT ",\"stop\":\"a\",\"n\":2}";
    (void)state;
    for (int64_t n = 1; n < 1000; n++) {
        call c;
        fault why;
        fault_arm(FAULT_ALLOC, n);
        const bool good = read_text(CALL_CHAT, text, &c, &why);
        const int64_t calls = fault_count(FAULT_ALLOC);
        fault_arm(FAULT_ALLOC, 0);
        assert_true(good == (why.status == 0));
        call_clear(&c);
        if (calls < n)
            return;
    }
    fail_msg("it never ends");
}

/* A stream that nobody reads keeps text, candidates and values: all of it is charged. */
static void test_what_a_stream_keeps(void **state) {
    server s = {0};
    answer answers[2] = {{.cap_likely = 10}, {.cap_likely = 5}};
    job j = {.s = &s, .n_answer = 2, .answers = answers, .n_kept = 1000};
    (void)state;
    buffer_add(&answers[1].text, "text", 4);
    buffer_add(&j.out, "out", 3);
    const uint64_t text = answers[1].text.cap + j.out.cap;
    assert_int_equal(job_buffered(&j), text);
    job_charge(&j);
    assert_int_equal(s.n_text, text + 15 * sizeof(nib_candidate) + 1000);
    buffer_clear(&answers[1].text);
    buffer_clear(&j.out);
    j.n_kept = -8; /* more was freed than writing had taken */
    job_charge(&j);
    assert_int_equal(s.n_text, 15 * sizeof(nib_candidate));
}

int main(void) {
    usual = (server_defaults){.max_tokens = -1, .seed = -1};
    nib_sampling_init(&usual.sampling);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_everything_is_read),
        cmocka_unit_test(test_defaults),
        cmocka_unit_test(test_defaults_of_the_server),
        cmocka_unit_test(test_order_of_samplers),
        cmocka_unit_test(test_samplers),
        cmocka_unit_test(test_values_of_others),
        cmocka_unit_test(test_messages_become_texts),
        cmocka_unit_test(test_prompts),
        cmocka_unit_test(test_what_is_wrong_is_named),
        cmocka_unit_test(test_no_memory),
        cmocka_unit_test(test_what_a_stream_keeps),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
