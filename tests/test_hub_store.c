/* The models on a machine and their names: the models folder and the cache of Hugging Face's programs.
 */
#include "base/file.h"
#include "base/mem.h"
#include "hub/find.h"
#include "hub/store.h"
#include "support/faults.h"
#include "support/tempdir.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#define SNAPSHOT "hub/models--Org--Big/snapshots/abc"

static void put(const char *name, const char *text) {
    assert_int_equal(path_make_folders(temp_path(name), NULL), NIB_OK);
    temp_file(name, text, strlen(text));
}

static int make(void **state) {
    (void)state;
    static const char *const files[] = {"models/smollm2.gguf",
                                        "models/.part.gguf",
                                        "models/notes.txt",
                                        "models/llama/config.json",
                                        "models/split-00001-of-00002.gguf",
                                        "models/split-00002-of-00002.gguf",
                                        "models/Org/Small-GGUF/Small-Q8_0.gguf",
                                        "models/Org/Small-GGUF/Small-Q4_K_M.gguf",
                                        SNAPSHOT "/Big-Q4_0.gguf",
                                        SNAPSHOT
                                        "/Big-F16-00001-of-00002.gguf", /* the other one is missing */
                                        "hub/models--Org--Big/snapshots/old/Big-Q2_K.gguf",
                                        "hub/models--Org--Folder/snapshots/1/config.json",
                                        "hub/models--Org--Folder/snapshots/1/model.safetensors",
                                        "hub/models--Org--Half/snapshots/1/config.json"};
    for (size_t i = 0; i < sizeof files / sizeof *files; i++)
        put(files[i], "x");
    put("hub/models--Org--Big/refs/main", "abc\n");
    put("hub/models--Org--Folder/refs/main", "1");
    put("hub/models--Org--Half/refs/main", "1");
    put("hub/models--Org--Bad/refs/main", "../../models");
    if (symlink("/no/such/blob", temp_path(SNAPSHOT "/Big-Q8_0.gguf")))
        return -1;
    setenv("NIBBLE_MODELS", temp_path("models"), 1);
    setenv("HF_HUB_CACHE", temp_path("hub"), 1);
    return 0;
}

static void the_list_has_every_whole_model(void **state) {
    (void)state;
    static const struct {
        const char *name;
        bool cached;
    } wanted[] = {{"Org/Small-GGUF/Small-Q4_K_M.gguf", false},
                  {"Org/Small-GGUF/Small-Q8_0.gguf", false},
                  {"llama", false},
                  {"smollm2.gguf", false},
                  {"split-00001-of-00002.gguf", false},
                  {"Org/Big/Big-Q4_0.gguf", true},
                  {"Org/Folder", true}};
    model_store s;
    assert_int_equal(model_store_open(&s, NULL), NIB_OK);
    for (size_t i = 0; i < s.n && i < sizeof wanted / sizeof *wanted; i++) {
        assert_string_equal(s.models[i].name, wanted[i].name);
        assert_int_equal(s.models[i].cached, wanted[i].cached);
        assert_true(path_exists(s.models[i].path));
    }
    assert_int_equal(s.n, sizeof wanted / sizeof *wanted);
    model_store_close(&s);
}

static void expect(const char *name, const char *found) {
    char *path = NULL;
    nib_error err = {0};
    const nib_status status = model_find(name, &path, &err);
    if (!found) {
        assert_int_equal(status, NIB_E_NOTFOUND);
        return;
    }
    assert_int_equal(status, NIB_OK);
    assert_string_equal(path, temp_path(found));
    mem_free(path);
}

static void names_find_models(void **state) {
    (void)state;
    expect("smollm2", "models/smollm2.gguf");
    expect("SmolLM2.gguf", "models/smollm2.gguf");
    expect("llama", "models/llama");
    expect("Small-Q8_0", "models/Org/Small-GGUF/Small-Q8_0.gguf");
    expect("Org/Small-GGUF/Small-Q8_0", "models/Org/Small-GGUF/Small-Q8_0.gguf");
    expect("Org/Small-GGUF", "models/Org/Small-GGUF/Small-Q4_K_M.gguf");
    expect("org/small-gguf:q8_0", "models/Org/Small-GGUF/Small-Q8_0.gguf");
    expect("hf.co/Org/Small-GGUF:Q8_0", "models/Org/Small-GGUF/Small-Q8_0.gguf");
    expect("Org/Small-GGUF:Q5_0", NULL);
    expect("Org/Big", SNAPSHOT "/Big-Q4_0.gguf");
    expect("Org/Big:Q8_0", NULL); /* its blob is gone */
    expect("Org/Big:F16", NULL);  /* not whole */
    expect("Org/Big:Q2_K", NULL); /* not of the main revision */
    expect("Org/Folder", "hub/models--Org--Folder/snapshots/1");
    expect("Org/Half", NULL);
    expect("Org/Bad", NULL);
    expect("notes.txt", "models/notes.txt"); /* no model, as opening it will say */
    expect("", NULL);
}

static void near_names_are_suggested(void **state) {
    (void)state;
    static const struct {
        const char *typed, *meant;
    } cases[] = {{"smolm2", "'smollm2'"},
                 {"Small-Q4_K", "'Small-Q4_K_M'"},
                 {"Org/Smal-GGUF/Small-Q8_0", "'Org/Small-GGUF/Small-Q8_0'"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char *path = NULL;
        nib_error err;
        assert_int_equal(model_find(cases[i].typed, &path, &err), NIB_E_NOTFOUND);
        if (!strstr(err.message, cases[i].meant))
            fail_msg("%s: %s", cases[i].typed, err.message);
    }
}

static nib_status find_once(void *user, nib_error *err) {
    char *path = NULL;
    const nib_status status = model_find(user, &path, err);
    if (status == NIB_OK)
        fault_made(path, strlen(path));
    mem_free(path);
    return status;
}

static nib_status list_once(void *user, nib_error *err) {
    (void)user;
    model_store s;
    const nib_status status = model_store_open(&s, err);
    for (size_t i = 0; status == NIB_OK && i < s.n; i++)
        fault_made(s.models[i].path, strlen(s.models[i].path));
    model_store_close(&s);
    return status;
}

static void no_memory_is_said(void **state) {
    (void)state;
    assert_true(fault_sweep(FAULT_ALLOC, 1, list_once, NULL) > 20);
    assert_true(fault_sweep(FAULT_ALLOC, 1, find_once, "Org/Big") > 20);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_list_has_every_whole_model), cmocka_unit_test(names_find_models),
        cmocka_unit_test(near_names_are_suggested), cmocka_unit_test(no_memory_is_said)};
    return cmocka_run_group_tests(tests, make, NULL);
}
