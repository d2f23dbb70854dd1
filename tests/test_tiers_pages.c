/* Pages: every byte of the weights once, in the image's order, of a bounded size; and what the pager is
 * predicted to charge. */
#include "base/mem.h"
#include "model/model.h"
#include "support/tinyfolder.h"
#include "support/tinymodel.h"
#include "tiers/pager.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

static const tiny_shape tied = {TYPE_Q8_0, 8, 256, 768, 8, 2, 8192, 128, true};
static const tiny_shape untied = {TYPE_Q4_1, 6, 320, 1024, 4, 4, 8192, 128, false};
static const tiny_shape wide = {TYPE_Q4_0, 2, 1024, 4096, 8, 8, 2048, 64, true};

static model *open_model(const char *path) {
    nib_error err = {0};
    model *m = NULL;
    if (model_open(path, NULL, &m, &err))
        fail_msg("%s", err.message);
    return m;
}

static uint64_t own_bytes(const block *blk) {
    uint64_t all = 0;
    for (int i = 0; i < blk->n_weight; i++)
        if (!blk->weights[i].vector && blk->weights[i].shared_block < 0)
            all += (blk->weights[i].bytes + 63) / 64 * 64;
    return all;
}

static void check(const char *path) {
    nib_error err = {0};
    pager_page *pages;
    pager_need need;
    int n_page;
    model *m = open_model(path);
    assert_int_equal(pager_pages(m, &pages, &n_page, &err), NIB_OK);
    assert_int_equal(pager_needs(m, 2, &need, &err), NIB_OK);
    uint64_t all = need.vectors;
    for (int i = 0; i < n_page; i++) {
        assert_true(pages[i].bytes > 0 && pages[i].bytes % 4096 == 0);
        assert_true(pages[i].bytes <= UINT64_C(5) << 18);
        assert_true(pages[i].table || pages[i].bytes <= need.page_most);
        all += pages[i].bytes;
    }
    assert_int_equal(all, need.image);
    for (int b = 0; b < model_n_block(m); b++) {
        uint64_t sum = 0, n = 0, own = own_bytes(model_block(m, b));
        for (int i = 0; i < n_page; i++)
            if (pages[i].block == b)
                sum += pages[i].bytes, n++;
        assert_in_range(sum, own, own + 4096 * n);
    }
    mem_free(pages);
    model_close(m);
}

static void every_byte_in_one_page(void **state) {
    (void)state;
    check(tiny_model("tied.gguf", &tied));
    check(tiny_model("untied.gguf", &untied));
    check(tiny_model("wide.gguf", &wide));
    check(tiny_folder_gpt2());
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_byte_in_one_page)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
