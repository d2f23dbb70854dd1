/* message.c - see message.h. */
#include "cluster/message.h"

#include "base/mem.h"

#include <string.h>

enum { ALIGN = 8 };
#define MAX_BODY (UINT64_C(1) << 40)

size_t message_padded(size_t n_byte) {
    return (n_byte + ALIGN - 1) / ALIGN * ALIGN;
}

nib_status message_receive(const rank_link *from, message *to, bool *ended, nib_error *err) {
    NIB_TRY(link_receive(from, &to->head, sizeof to->head, ended, err));
    if (ended && *ended)
        return NIB_OK;
    if (to->head.magic != MESSAGE_MAGIC || to->head.n_byte > MAX_BODY || to->head.n_call > to->head.n_byte)
        return nib_fail(err, NIB_E_IO,
                        "expected a message of the rank before, found other bytes: ranks run "
                        "the same version of nibble");
    if (mem_grow((void **)&to->body, &to->cap, to->head.n_byte + 1, 1))
        return nib_fail_nomem(err, to->head.n_byte, "a message of a rank");
    to->head.error.message[sizeof to->head.error.message - 1] = '\0';
    return link_receive(from, to->body, to->head.n_byte, NULL, err);
}

void message_clear(message *m) {
    mem_free(m->body);
    memset(m, 0, sizeof *m);
}

nib_status message_send(const rank_link *to, message_header head, const link_part *parts, int n_part,
                        nib_error *err) {
    link_part all[LINK_MAX_PART] = {{&head, sizeof head}};
    head.magic = MESSAGE_MAGIC;
    head.n_byte = 0;
    for (int i = 0; i < n_part; i++) {
        all[i + 1] = parts[i];
        head.n_byte += parts[i].n_byte;
    }
    return link_send(to, all, n_part + 1, err);
}

nib_status message_read_pass(const message *m, size_t stream_width, message_pass *out, nib_error *err) {
    const message_header *h = &m->head;
    const uint64_t n_row = (uint64_t)h->n_row, n_segment = (uint64_t)h->n_segment;
    const uint64_t max = h->n_byte;
    if (h->n_row >= 0 && h->n_segment >= 0 && n_row <= max && n_segment <= max && h->n_call % ALIGN == 0) {
        const uint64_t segments = h->n_call + n_segment * sizeof(message_segment);
        const uint64_t tokens = segments + message_padded(n_row * sizeof(int32_t));
        const uint64_t all = tokens + n_row * stream_width * sizeof(float);
        *out = (message_pass){.calls = m->body,
                              .segments = (const message_segment *)(const void *)(m->body + h->n_call),
                              .tokens = (const int32_t *)(const void *)(m->body + segments),
                              .stream = (const float *)(const void *)(m->body + tokens)};
        if (all == max)
            return NIB_OK;
        out->stream = NULL;
        if (tokens == max)
            return NIB_OK;
    }
    return nib_fail(err, NIB_E_FAILED, "expected a pass of %lld rows, found a message of %llu bytes",
                    (long long)h->n_row, (unsigned long long)h->n_byte);
}
