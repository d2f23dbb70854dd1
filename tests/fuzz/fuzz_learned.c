/* Any bytes as a file of learned times: read or refused; data that was read can be used, written and read
 * again. */
#include "base/mem.h"
#include "profile/learned.h"

#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    /* the first line belongs to this machine, so that the others are looked at */
    static const machine here = {.cpu = "a cpu", .features = "", .n_core = 1};
    const learned none = {0};
    learned l, again;
    char *head, *text, *all;
    if (learned_print(&here, &none, &head, NULL) != NIB_OK)
        return 0;
    const size_t n = strlen(head);
    all = mem_alloc(n + size);
    if (all) {
        memcpy(all, head, n);
        memcpy(all + n, data, size);
    }
    mem_free(head);
    const nib_status status = all ? learned_parse(all, n + size, &here, &l, NULL) : NIB_E_NOMEM;
    mem_free(all);
    if (status != NIB_OK)
        return 0;
    for (int i = 1; i < l.n; i++)
        if (!(learned_distance(&l.runs[0], &l.runs[i]) >= 0) || !(learned_seconds(&l.runs[i]) > 0))
            abort();
    if (learned_print(&here, &l, &text, NULL) != NIB_OK ||
        learned_parse(text, strlen(text), &here, &again, NULL) != NIB_OK || again.n != l.n)
        abort();
    mem_free(text);
    learned_clear(&l);
    learned_clear(&again);
    return 0;
}
