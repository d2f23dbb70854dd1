/* openapi.c - describes the server's interface in OpenAPI. Numbers, texts and booleans come from the tables
 * that parse bodies; structured members are written here. */
#include "server/openapi.h"

#include "base/num.h"
#include "server/call_parts.h"

#include <stdio.h>
#include <string.h>

enum { MAX_TABLES = 3 };

typedef struct shape {
    const char *name;
    const member_table *tables[MAX_TABLES];
    const char *required; /* the JSON of an array */
    const char *others;   /* the JSON of an object: structured members */
    const char *rule;     /* the JSON of an object: constraints between members; NULL: none */
} shape;

#define TEXTS(max) "{\"oneOf\":[{\"type\":[\"string\",\"null\"],\"minLength\":1}," TEXT_LIST(max) "]}"
#define TEXT_LIST(max)                                                                                       \
    "{\"type\":\"array\",\"maxItems\":" max ",\"items\":{\"type\":\"string\",\"minLength\":1}}"
#define MESSAGES(min, roles)                                                                                 \
    "{\"type\":\"array\",\"minItems\":" min                                                                  \
    ",\"items\":{\"type\":\"object\",\"required\":[\"role\",\"content\"],"                                   \
    "\"properties\":{\"role\":{\"enum\":[" roles "]},\"content\":{\"oneOf\":[{\"type\":\"string\"},"         \
    "{\"type\":\"array\",\"items\":{\"type\":\"object\",\"required\":[\"type\",\"text\"],"                   \
    "\"properties\":{\"type\":{\"const\":\"text\"},\"text\":{\"type\":\"string\"}}}}]}}}}"
#define TWO_ROLES "\"user\",\"assistant\""
#define ROLES     "\"system\",\"developer\",\"user\",\"assistant\",\"tool\""
#define FUNCTIONS(type, schema)                                                                              \
    "{\"type\":[\"array\",\"null\"],\"maxItems\":128,\"items\":{\"type\":\"object\",\"required\":[\"name\"]" \
    ","                                                                                                      \
    "\"properties\":{\"type\":{\"enum\":[\"" type                                                            \
    "\",null]},\"name\":{\"type\":\"string\",\"minLength\":1},"                                              \
    "\"" schema "\":{\"type\":[\"object\",\"null\"]}}}}"
#define ID_LIST "\"type\":\"array\",\"items\":{\"type\":\"integer\",\"minimum\":0,\"maximum\":2147483647}"
#define IDS     "{\"minItems\":1," ID_LIST "}"
#define BIAS                                                                                                 \
    "{\"type\":[\"object\",\"null\"],\"maxProperties\":1024,\"propertyNames\":{\"pattern\":\"^[0-9]{1,9}$"   \
    "\"},"                                                                                                   \
    "\"additionalProperties\":{\"type\":\"number\",\"minimum\":-100,\"maximum\":100}}"

#define OPTIONS "{\"oneOf\":[{\"type\":\"null\"},{\"$ref\":\"#/components/schemas/OllamaOptions\"}]}"

/* A requested tool must be one of `tools`, which a schema cannot express. */
#define NAMED       "\"description\":\"also one of tools, or any of them\""
#define WORD_CHOICE "{\"enum\":[\"auto\",\"none\",null]," NAMED "}"
#define CHOICE                                                                                               \
    "{\"type\":[\"object\",\"null\"],\"required\":[\"type\"],\"properties\":{\"type\":{\"enum\":[\"auto\","  \
    "\"none\"]}}," NAMED "}"

#define KEEP_ALIVE                                                                                           \
    ",\"keep_alive\":{\"oneOf\":[{\"type\":[\"number\",\"null\"]},{\"enum\":[\"5m\",\"-1\",\"1h30m\"]}]}"

static const shape shapes[] = {
    {"ChatRequest",
     {&openai_members, &openai_chat_members, &sampler_members},
     "[\"messages\"]",
     "{\"messages\":" MESSAGES("1", ROLES) ",\"stop\":" TEXTS(
         "16") ",\"logit_bias\":" BIAS
               ",\"tools\":{\"type\":[\"array\",\"null\"],\"items\":{\"type\":\"object\"}},"
               "\"tool_choice\":" WORD_CHOICE ","
               "\"response_format\":{\"type\":[\"object\",\"null\"],\"required\":[\"type\"],"
               "\"properties\":{\"type\":{\"enum\":[\"text\",\"json_object\"]}}}}",
     "{\"if\":{\"properties\":{\"top_logprobs\":{\"type\":\"integer\",\"minimum\":1}},\"required\":["
     "\"top_logprobs\"]},\"then\":{\"properties\":{\"logprobs\":{\"const\":true}},\"required\":[\"logprobs\"]"
     "}}"},
    {"CompletionRequest",
     {&openai_members, &openai_completion_members, &sampler_members},
     "[\"prompt\"]",
     "{\"prompt\":{\"oneOf\":[{\"type\":\"string\",\"minLength\":1}," IDS
     ",{\"type\":\"array\",\"minItems\":1,\"maxItems\":64,"
     "\"items\":{\"oneOf\":[{\"type\":\"string\"}," IDS
     "]}}]},\"stop\":" TEXTS("16") ",\"logit_bias\":" BIAS
                                   ",\"logprobs\":{\"oneOf\":[{\"type\":[\"integer\",\"null\"],\"minimum\":0,"
                                   "\"maximum\":5},{\"const\":false}]}}",
     NULL},
    {"MessagesRequest",
     {&anthropic_members, &sampler_members},
     "[\"messages\",\"max_tokens\"]",
     "{\"messages\":" MESSAGES("1", TWO_ROLES) ",\"stop_sequences\":" TEXT_LIST(
         "16") ",\"system\":{\"type\":[\"string\",\"null\"]},"
               "\"tools\":" FUNCTIONS("custom", "input_schema") ",\"tool_choice\":" CHOICE "}",
     NULL},
    {"ResponsesRequest",
     {&responses_members, &sampler_members},
     "[\"input\"]",
     "{\"input\":{\"oneOf\":[{\"type\":\"string\"}," MESSAGES(
         "1", ROLES) "]},\"instructions\":{\"type\":[\"string\","
                     "\"null\"]},\"tools\":" FUNCTIONS("function",
                                                       "parameters") ",\"tool_choice\":" WORD_CHOICE "}",
     NULL},
    {"CountRequest", {NULL}, "[\"messages\"]", "{\"messages\":" MESSAGES("1", TWO_ROLES) "}", NULL},
    {"OllamaOptions",
     {&ollama_options, &sampler_members},
     NULL,
     "{\"stop\":" TEXTS("16") ",\"num_predict\":{\"oneOf\":[{\"type\":\"null\"},{\"enum\":[-2,-1]},"
                              "{\"type\":\"integer\",\"minimum\":1,\"maximum\":1073741824}]}}",
     NULL},
    {"OllamaChatRequest",
     {&ollama_members},
     NULL,
     "{\"messages\":{\"oneOf\":[{\"type\":\"null\"}," MESSAGES(
         "0", ROLES) "]},\"options\":" OPTIONS KEEP_ALIVE "}",
     NULL},
    {"OllamaGenerateRequest",
     {&ollama_members, &ollama_generate_members},
     NULL,
     "{\"suffix\":{\"enum\":[\"\",null]},\"options\":" OPTIONS KEEP_ALIVE "}",
     NULL},
    {"EmbeddingsRequest",
     {NULL},
     "[\"input\"]",
     "{\"input\":{\"oneOf\":[{\"type\":\"string\",\"minLength\":1}," IDS
     ",{\"type\":\"array\",\"minItems\":1,\"maxItems\":2048,"
     "\"items\":{\"oneOf\":[{\"type\":\"string\",\"minLength\":1}," IDS
     "]}}]},\"encoding_format\":{\"enum\":[\"float\",\"base64\",null]},"
     "\"dimensions\":{\"type\":[\"integer\",\"null\"],\"minimum\":1,\"description\":\"those of the model, no "
     "other "
     "number\"}}",
     NULL},
    {"OllamaEmbeddingRequest",
     {NULL},
     "[\"prompt\"]",
     "{\"prompt\":{\"type\":\"string\",\"minLength\":1}}",
     NULL},
    {"TokenizeRequest", {&tokenize_members}, "[\"content\"]", NULL, NULL},
    {"BatchRequest",
     {NULL},
     "[\"input_file_id\",\"endpoint\"]",
     "{\"input_file_id\":{\"type\":\"string\"},\"endpoint\":{\"type\":\"string\"},"
     "\"completion_window\":{\"type\":\"string\"},\"metadata\":{\"type\":[\"object\",\"null\"]}}",
     NULL},
    {"DetokenizeRequest", {NULL}, "[\"tokens\"]", "{\"tokens\":{" ID_LIST "}}", NULL},
};

static const struct {
    const char *path, *shape;
} bodies[] = {{"/v1/chat/completions", "ChatRequest"}, {"/chat/completions", "ChatRequest"},
              {"/apply-template", "ChatRequest"},      {"/v1/completions", "CompletionRequest"},
              {"/completions", "CompletionRequest"},   {"/v1/responses", "ResponsesRequest"},
              {"/v1/messages", "MessagesRequest"},     {"/v1/messages/count_tokens", "CountRequest"},
              {"/api/chat", "OllamaChatRequest"},      {"/api/generate", "OllamaGenerateRequest"},
              {"/v1/embeddings", "EmbeddingsRequest"}, {"/embeddings", "EmbeddingsRequest"},
              {"/api/embed", "EmbeddingsRequest"},     {"/api/embeddings", "OllamaEmbeddingRequest"},
              {"/v1/batches", "BatchRequest"},         {"/tokenize", "TokenizeRequest"},
              {"/detokenize", "DetokenizeRequest"}};

static json_t *parse(const char *text) {
    return json_loads(text, 0, NULL);
}

/* The schema of a member. Null means "missing", so only optional members may be null. */
static json_t *member_schema(const member *m, bool required) {
    static const char *const types[] = {[MEMBER_BOOL] = "boolean",
                                        [MEMBER_FLOAT] = "number",
                                        [MEMBER_I32] = "integer",
                                        [MEMBER_I64] = "integer",
                                        [MEMBER_TEXT] = "string"};
    const bool number = m->kind != MEMBER_BOOL && m->kind != MEMBER_TEXT;
    json_t *s = required ? json_pack("{s:s}", "type", types[m->kind])
                         : json_pack("{s:[s,s]}", "type", types[m->kind], "null");
    if (number && m->min > MIN_MEMBER_NO) {
        json_object_set_new(s, "minimum", json_real(m->min));
        json_object_set_new(s, "maximum", json_real(m->max));
    } else if (number) {
        json_object_set_new(s, "format", json_string("int64"));
        json_object_set_new(s, "minimum", json_integer(INT64_MIN));
        json_object_set_new(s, "maximum", json_integer(INT64_MAX));
    }
    return s;
}

static bool is_required(const json_t *names, const char *name) {
    const json_t *v;
    size_t i;
    json_array_foreach(names, i, v) {
        if (!strcmp(json_string_value(v), name))
            return true;
    }
    return false;
}

static json_t *shape_schema(const shape *s) {
    json_t *required = s->required ? parse(s->required) : json_array();
    json_t *properties = json_object(), *others = s->others ? parse(s->others) : json_object();
    json_t *rule = s->rule ? parse(s->rule) : json_object();
    for (size_t t = 0; t < MAX_TABLES && s->tables[t]; t++)
        for (size_t i = 0; i < s->tables[t]->n; i++)
            json_object_set_new(
                properties, s->tables[t]->rows[i].name,
                member_schema(&s->tables[t]->rows[i], is_required(required, s->tables[t]->rows[i].name)));
    json_object_update_new(properties, others);
    json_t *whole =
        json_pack("{s:s, s:o, s:o}", "type", "object", "properties", properties, "required", required);
    json_object_update_new(whole, rule);
    return whole;
}

static json_t *schemas(void) {
    json_t *all = parse("{\"Error\":{\"type\":\"object\",\"required\":[\"error\"]}}");
    for (size_t i = 0; i < NUM_COUNT(shapes); i++)
        json_object_set_new(all, shapes[i].name, shape_schema(&shapes[i]));
    return all;
}

static json_t *body_of(const char *path) {
    char ref[80];
    for (size_t i = 0; i < NUM_COUNT(bodies); i++)
        if (!strcmp(bodies[i].path, path)) {
            snprintf(ref, sizeof ref, "#/components/schemas/%s", bodies[i].shape);
            return json_pack("{s:b, s:{s:{s:{s:s}}}}", "required", 1, "content", "application/json", "schema",
                             "$ref", ref);
        }
    return NULL;
}

static json_t *operation(const route *r) {
    json_t *o =
        parse("{\"responses\":{\"200\":{\"description\":\"the answer\"},\"default\":{\"description\":\"an "
              "error\",\"content\":{\"application/json\":{\"schema\":{\"$ref\":\"#/components/schemas/"
              "Error\"}}}}}}");
    json_t *body = strcmp(r->method, "POST") ? NULL : body_of(r->path);
    if (body)
        json_object_set_new(o, "requestBody", body);
    if (strchr(r->path, '{')) /* its only parameter */
        json_object_set_new(o, "parameters",
                            json_pack("[{s:s, s:s, s:b, s:{s:s}}]", "name", "model", "in", "path", "required",
                                      1, "schema", "type", "string"));
    if (r->kind == ROUTE_OPEN)
        json_object_set_new(o, "security", json_array());
    return o;
}

static json_t *paths(void) {
    json_t *all = json_object();
    for (size_t i = 0; i < server_n_route; i++) {
        const route *r = &server_routes[i];
        const char *method = !strcmp(r->method, "GET")    ? "get"
                             : !strcmp(r->method, "POST") ? "post"
                                                          : "delete";
        if (!json_object_get(all, r->path))
            json_object_set_new(all, r->path, json_object());
        json_object_set_new(json_object_get(all, r->path), method, operation(r));
    }
    return all;
}

void openapi_describe(exchange *x) {
    json_t *schemes = parse("{\"bearer\":{\"type\":\"http\",\"scheme\":\"bearer\"}}");
    exchange_json(x,
                  json_pack("{s:s, s:{s:s, s:s}, s:o, s:{s:o, s:o}, s:[{}, {s:[]}]}", "openapi", "3.1.0",
                            "info", "title", "nibble", "version", NIB_VERSION, "paths", paths(), "components",
                            "schemas", schemas(), "securitySchemes", schemes, "security", "bearer"));
}
