/* call_anthropic.c - bodies as Anthropic's API has them. */
#include "server/call_parts.h"

#include "base/num.h"

#include <string.h>

static const member rows[] = {
    {"max_tokens", MEMBER_I64, offsetof(call, max_tokens), 1, 1 << 30},
    {"temperature", MEMBER_FLOAT, offsetof(call, sampling.temperature), 0, 1},
    {"top_p", MEMBER_FLOAT, offsetof(call, sampling.top_p), 0, 1},
    {"top_k", MEMBER_I32, offsetof(call, sampling.top_k), 0, 1 << 24},
    {"seed", MEMBER_I64, offsetof(call, seed), MIN_MEMBER_NO, MAX_MEMBER_NO},
    {"stream", MEMBER_BOOL, offsetof(call, stream), 0, 0},
};
const member_table anthropic_members = {rows, NUM_COUNT(rows)};

/* A text or blocks of text, before all messages. */
static bool read_system(call *c, fault *why) {
    json_t *system = member_get(c->body, "system");
    if (!system)
        return true;
    if (!json_is_string(system) && !json_is_array(system))
        return fault_field(why, "system", "expected a string or an array of blocks, found %s",
                           json_type_name(system));
    json_t *text = json_is_array(system) ? parts_join(system, "system", why) : json_incref(system);
    c->messages = text ? json_pack("[{s:s, s:o}]", "role", "system", "content", text) : NULL;
    return c->messages || fault_set(why, 503, NULL, "out of memory");
}

bool call_parse_anthropic(const char *text, size_t n_byte, bool answers, call *out, fault *why) {
    if (!call_begin(CALL_CHAT, text, n_byte, out, why) ||
        !members_read(out->body, &anthropic_members, out, why))
        return false;
    call_settle(out, out->body);
    if (answers && out->max_tokens < 0)
        return fault_field(why, "max_tokens", "expected a whole number of at least 1, found nothing");
    if (json_array_size(member_get(out->body, "tools")) > 0)
        return fault_field(why, "tools", "is not supported");
    const json_t *stop = member_get(out->body, "stop_sequences");
    if (stop && !json_is_array(stop))
        return fault_field(why, "stop_sequences", "expected an array of strings, found %s",
                           json_type_name(stop));
    return stop_read(out, "stop_sequences", stop, why) && read_system(out, why) &&
           messages_read(out, member_get(out->body, "messages"), why);
}
