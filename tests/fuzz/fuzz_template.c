/* Any bytes as a chat template, rendered over a conversation under small limits: text or an error, always
 * soon. */
#include "base/mem.h"
#include "jinja/template.h"
#include "jinja/run.h"

#include <stddef.h>
#include <stdint.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const char conversation[] =
    "{\"messages\":[{\"role\":\"system\",\"content\":\"Be brief.\"},{\"role\":\"user\",\"content\":\" "
    "H\\u00e4llo \\ud83d\\ude0e\"},"
    "{\"role\":\"assistant\",\"content\":null,\"tool_calls\":[{\"id\":\"abcdef123\",\"function\":{\"name\":"
    "\"f\","
    "\"arguments\":{\"a\":[1,2.5,true,null]}}}]},{\"role\":\"tool\",\"content\":\"7\"}],\"tools\":[{"
    "\"function\":{\"name\":"
    "\"f\"}}],\"bos_token\":\"<s>\",\"eos_token\":\"</"
    "s>\",\"add_generation_prompt\":true,\"x\":[3,1,2],\"s\":\"a b c\",\"n\":5}";

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    template *t;
    nib_error err;
    if (template_parse((const char *)data, size, &t, &err) != NIB_OK)
        return 0;
    json_t *variables = json_loads(conversation, 0, NULL);
    tpl_limits limits = {.steps = 200000, .memory = 16u << 20, .output = 1u << 20, .depth = 200};
    template_text out;
    if (tpl_render_limited(t, NULL, variables, 0, limits, &out, &err) == NIB_OK)
        template_text_clear(&out);
    json_decref(variables);
    template_free(t);
    return 0;
}
