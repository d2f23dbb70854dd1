/* Any bytes as the body of a request: refused with a reason, or read, and then every number is in its range
 * and every text is there. The first byte chooses the API. */
#include "server/call.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void hold(bool good) {
    if (!good)
        abort();
}

static void look(const call *c) {
    const nib_sampling *s = &c->sampling;
    hold(s->temperature >= 0 && s->temperature <= 2 && s->top_p > 0 && s->top_p <= 1 && s->top_k >= 0);
    hold(s->min_p >= 0 && s->min_p <= 1 && s->repeat_penalty > 0 && s->penalty_window >= -1);
    hold(c->n >= 1 && c->n <= CALL_MAX_CHOICES && c->max_tokens >= -1 && c->max_tokens != 0);
    hold(c->n_stop <= CALL_MAX_STOPS);
    for (size_t i = 0; i < c->n_stop; i++)
        hold(strlen(c->stop[i]) > 0);
    for (size_t i = 0; i < json_array_size(c->tools); i++)
        hold(json_is_object(json_array_get(c->tools, i)));
    hold(c->choice == TOOLS_AUTO || json_array_size(c->tools) > 0);
    hold((c->choice == TOOLS_NAMED) == (c->tool_name != NULL));
    if (c->kind == CALL_COMPLETION)
        hold(json_array_size(c->prompts) > 0);
    for (size_t i = 0; i < json_array_size(c->messages); i++)
        hold(json_is_string(json_object_get(json_array_get(c->messages, i), "content")));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    call c;
    fault why = {0};
    server_defaults usual = {.max_tokens = -1, .seed = -1};
    nib_sampling_init(&usual.sampling);
    const size_t skip = size ? 1 : 0;
    const char *text = (const char *)data + skip;
    const int api = size ? data[0] % 6 : 0;
    const bool read = api == 0   ? call_parse(CALL_CHAT, text, size - skip, &usual, &c, &why)
                      : api == 1 ? call_parse(CALL_COMPLETION, text, size - skip, &usual, &c, &why)
                      : api == 2 ? call_parse_ollama_chat(text, size - skip, &usual, &c, &why)
                      : api == 3 ? call_parse_ollama_generate(text, size - skip, &usual, &c, &why)
                      : api == 5 ? call_parse_responses(text, size - skip, &usual, &c, &why)
                                 : call_parse_anthropic(text, size - skip, true, &usual, &c, &why);
    hold(read == (why.status == 0));
    if (read)
        look(&c);
    else
        hold(why.message[0] != '\0');
    json_decref(fault_json(&why));
    call_clear(&c);
    return 0;
}
