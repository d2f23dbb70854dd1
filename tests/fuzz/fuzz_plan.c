/* Any bytes as a plan: read or refused; a plan that was read can be written and read again. */
#include "base/mem.h"
#include "plan/plan.h"

#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    plan p, q;
    char *text;
    if (plan_parse((const char *)data, size, &p, NULL) != NIB_OK)
        return 0;
    if (plan_print(&p, &text, NULL) != NIB_OK || plan_parse(text, strlen(text), &q, NULL) != NIB_OK)
        abort();
    mem_free(text);
    plan_clear(&p);
    plan_clear(&q);
    return 0;
}
