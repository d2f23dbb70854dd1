/* Models of the hub as data: names, the files of a repository that form a model, the hub's answers about
 * them. */
#include "base/mem.h"
#include "hub/names.h"
#include "support/faults.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#define COMMIT "0123456789abcdef0123456789abcdef01234567"
#define SHA256 "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"

static void names_are_user_repo_quant(void **state) {
    (void)state;
    hub_name n;
    assert_true(hub_parse_name("user/repo", &n));
    assert_string_equal(n.user, "user");
    assert_string_equal(n.repo, "repo");
    assert_string_equal(n.quant, "");
    assert_true(hub_parse_name("hf.co/Some_User/a-1.5B-GGUF:q4_k_m", &n));
    assert_string_equal(n.user, "Some_User");
    assert_string_equal(n.repo, "a-1.5B-GGUF");
    assert_string_equal(n.quant, "q4_k_m");
    assert_true(hub_parse_name("https://huggingface.co/user/repo:sub/a-Q8_0.gguf", &n));
    assert_string_equal(n.quant, "sub/a-Q8_0.gguf");
    static const char *const bad[] = {
        "",         "repo",     "/repo",     "user/",          "user/repo:",  "user:q/repo",
        "./model",  "../model", "user/..",   "user/a..b",      "user/-a",     "a b/c",
        "user/r/c", "user/r/",  "/etc/pass", "user/r\xc3\xa9", "user/r:a\nb", "user/r:a:b"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        if (hub_parse_name(bad[i], &n))
            fail_msg("'%s' is taken", bad[i]);
    char longest[300] = "user/";
    memset(longest + 5, 'a', 97);
    assert_false(hub_parse_name(longest, &n));
    longest[5 + 96] = 0;
    assert_true(hub_parse_name(longest, &n));
}

static const char *const repo[] = {"README.md",
                                   "m-Q8_0.gguf",
                                   "m-Q4_K_S.gguf",
                                   "m-Q4_K_M.gguf",
                                   "mmproj-Q4_K_M.gguf",
                                   "m.imatrix.gguf",
                                   "m-IQ4_NL.gguf",
                                   "config.json",
                                   "big/m-F16-00002-of-00003.gguf",
                                   "big/m-F16-00001-of-00003.gguf",
                                   "big/m-F16-00003-of-00003.gguf"};
enum { N_REPO = sizeof repo / sizeof *repo };

static const char *chosen(const char *quant) {
    const int64_t i = hub_choose(repo, N_REPO, quant);
    return i < 0 ? "" : repo[i];
}

static void the_quant_chooses_the_file(void **state) {
    (void)state;
    assert_string_equal(chosen("Q8_0"), "m-Q8_0.gguf");
    assert_string_equal(chosen("q4_k_s"), "m-Q4_K_S.gguf");
    assert_string_equal(chosen("Q4_K"), ""); /* a part of two others */
    assert_string_equal(chosen("Q4_NL"), "");
    assert_string_equal(chosen("IQ4_NL"), "m-IQ4_NL.gguf");
    assert_string_equal(chosen("F16"), "big/m-F16-00001-of-00003.gguf");
    assert_string_equal(chosen("m-Q4_K_S.gguf"), "m-Q4_K_S.gguf");
    assert_string_equal(chosen("big/m-F16-00001-of-00003.gguf"), "big/m-F16-00001-of-00003.gguf");
    assert_string_equal(chosen(""), "m-Q4_K_M.gguf");
    assert_int_equal(hub_choose(repo, 3, ""), 2); /* no Q4_K_M: the first by name */
    assert_int_equal(hub_choose(repo, 1, ""), -1);
    static const char *const folder[] = {"model.safetensors", "config.json", "tokenizer.json"};
    assert_int_equal(hub_choose(folder, 3, ""), 1);
    assert_int_equal(hub_choose(folder, 3, "Q4_0"), -1);
    assert_int_equal(hub_choose(folder + 1, 2, ""), -1); /* no weights */
}

static void a_model_has_all_its_files(void **state) {
    (void)state;
    const char *first = "big/m-F16-00001-of-00003.gguf";
    int n = 0;
    for (size_t i = 0; i < N_REPO; i++)
        n += hub_belongs(first, repo[i]);
    assert_int_equal(n, 3);
    assert_false(hub_belongs(first, "m-F16-00002-of-00003.gguf"));
    assert_false(hub_belongs(first, "big/m-F16-00002-of-00004.gguf"));
    assert_true(hub_is_whole(repo, N_REPO, first));
    assert_false(hub_is_whole(repo, N_REPO - 1, first));
    assert_true(hub_is_whole(repo, N_REPO, "m-Q8_0.gguf"));
    assert_false(hub_belongs("m-Q8_0.gguf", "m-Q4_K_S.gguf"));
    assert_true(hub_is_first("m-Q8_0.GGUF"));
    assert_false(hub_is_first("big/m-F16-00002-of-00003.gguf"));
    assert_false(hub_is_first("config.json"));

    static const char *const folder[] = {"config.json",
                                         "model-00001-of-00002.safetensors",
                                         "tokenizer.json",
                                         "onnx/model.json",
                                         "consolidated.safetensors",
                                         "README.md",
                                         "chat_template.jinja",
                                         "pytorch_model.bin"};
    static const bool wanted[] = {true, true, true, false, false, false, true, false};
    for (size_t i = 0; i < 8; i++)
        assert_int_equal(hub_belongs("config.json", folder[i]), wanted[i]);
    assert_false(hub_is_whole(folder, 8, "config.json"));
}

static nib_status read(const char *json, hub_listing *l, nib_error *err) {
    return hub_read_listing(json, strlen(json), l, err);
}

static const char listing[] =
    "{\"sha\":\"" COMMIT "\",\"siblings\":["
    "{\"rfilename\":\".gitattributes\"},"
    "{\"rfilename\":\"config.json\",\"size\":12,\"blobId\":\"" COMMIT "\"},"
    "{\"rfilename\":\"../x.gguf\",\"size\":1,\"lfs\":{\"sha256\":\"" SHA256 "\"}},"
    "{\"rfilename\":\"/x.gguf\",\"size\":1,\"lfs\":{\"sha256\":\"" SHA256 "\"}},"
    "{\"rfilename\":\"a//x.gguf\",\"size\":1,\"lfs\":{\"sha256\":\"" SHA256 "\"}},"
    "{\"rfilename\":\"a/x.gguf\",\"size\":5,\"blobId\":\"" COMMIT "\",\"lfs\":{\"sha256\":\"" SHA256
    "\",\"size\":7000000000,\"pointerSize\":130}}]}";

static void the_hub_says_sizes_and_checksums(void **state) {
    (void)state;
    hub_listing l;
    nib_error err;
    assert_int_equal(read(listing, &l, &err), NIB_OK);
    assert_string_equal(l.commit, COMMIT);
    assert_int_equal(l.n, 2); /* neither the hidden file nor those that lead out of the folder */
    assert_string_equal(l.files[0].path, "config.json");
    assert_string_equal(l.files[0].blob, COMMIT);
    assert_string_equal(l.files[0].sha256, "");
    assert_int_equal(l.files[0].bytes, 12);
    assert_string_equal(l.files[1].path, "a/x.gguf");
    assert_string_equal(l.files[1].sha256, SHA256);
    assert_true(l.files[1].bytes == 7000000000);
    hub_listing_clear(&l);
    static const char *const bad[] = {
        "[]",
        "not json",
        "{\"siblings\":[]}",
        "{\"sha\":\"../..\",\"siblings\":[]}",
        "{\"sha\":\"" COMMIT "\"}",
        "{\"sha\":\"" COMMIT "\",\"siblings\":[{}]}",
        "{\"sha\":\"" COMMIT "\",\"siblings\":[{\"rfilename\":\"a\"}]}",
        "{\"sha\":\"" COMMIT "\",\"siblings\":[{\"rfilename\":\"a\",\"size\":-1,\"blobId\":\"" COMMIT "\"}]}",
        "{\"sha\":\"" COMMIT
        "\",\"siblings\":[{\"rfilename\":\"a\",\"size\":1,\"lfs\":{\"sha256\":\"12\"}}]}",
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_int_equal(read(bad[i], &l, &err), NIB_E_MODEL);
        hub_listing_clear(&l);
    }
}

static nib_status read_once(void *user, nib_error *err) {
    (void)user;
    hub_listing l;
    const nib_status status = read(listing, &l, err);
    for (size_t i = 0; status == NIB_OK && i < l.n; i++)
        fault_made(l.files[i].path, strlen(l.files[i].path));
    hub_listing_clear(&l);
    return status;
}

static void no_memory_is_said(void **state) {
    (void)state;
    assert_true(fault_sweep(FAULT_ALLOC, 1, read_once, NULL) > 2);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names_are_user_repo_quant), cmocka_unit_test(the_quant_chooses_the_file),
        cmocka_unit_test(a_model_has_all_its_files), cmocka_unit_test(the_hub_says_sizes_and_checksums),
        cmocka_unit_test(no_memory_is_said)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
