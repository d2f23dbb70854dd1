/* routes.c - every address, one row each. */
#include "server/exchange.h"

#include "base/num.h"
#include "server/anthropic.h"
#include "server/batches.h"
#include "server/embed.h"
#include "server/files.h"
#include "server/job.h"
#include "server/ollama.h"
#include "server/openai.h"
#include "server/openapi.h"
#include "server/reports.h"
#include "server/responses.h"
#include "server/texts.h"

static void answer_call(exchange *x, call_kind kind) {
    call c;
    job_begin_parsed(x, &c, call_parse(kind, x->body.data, x->body.n, &x->s->defaults, &c, &x->why));
}

static void chat(exchange *x) {
    answer_call(x, CALL_CHAT);
}

static void completion(exchange *x) {
    answer_call(x, CALL_COMPLETION);
}

const route server_routes[] = {
    {"GET", "/", ROUTE_OPEN, NULL, report_page},
    {"GET", "/openapi.json", ROUTE_OPEN, NULL, openapi_describe},
    {"GET", "/health", ROUTE_OPEN, NULL, report_health},
    {"GET", "/v1/health", ROUTE_OPEN, NULL, report_health},
    {"GET", "/v1/models", ROUTE_LOOK, NULL, report_models},
    {"GET", "/models", ROUTE_LOOK, NULL, report_models},
    {"GET", "/v1/models/{model}", ROUTE_LOOK, NULL, report_model},
    {"GET", "/metrics", ROUTE_LOOK, NULL, report_metrics},
    {"GET", "/memory", ROUTE_LOOK, NULL, report_memory},
    {"GET", "/slots", ROUTE_LOOK, NULL, report_slots},
    {"POST", "/tokenize", ROUTE_MODEL, NULL, texts_tokenize},
    {"POST", "/detokenize", ROUTE_MODEL, NULL, texts_detokenize},
    {"GET", "/tokenizer_info", ROUTE_LOOK, NULL, texts_tokenizer_info},
    {"POST", "/apply-template", ROUTE_MODEL, NULL, texts_apply_template},
    {"POST", "/v1/chat/completions", ROUTE_ANSWER, &openai_chat, chat},
    {"POST", "/chat/completions", ROUTE_ANSWER, &openai_chat, chat},
    {"POST", "/v1/completions", ROUTE_ANSWER, &openai_completion, completion},
    {"POST", "/completions", ROUTE_ANSWER, &openai_completion, completion},
    {"POST", "/v1/embeddings", ROUTE_ANSWER, &openai_embedding, embed_ask},
    {"POST", "/embeddings", ROUTE_ANSWER, &openai_embedding, embed_ask},
    {"POST", "/v1/responses", ROUTE_ANSWER, &openai_responses, responses_ask},
    {"POST", "/v1/files", ROUTE_UPLOAD, NULL, files_create},
    {"GET", "/v1/files", ROUTE_LOOK, NULL, files_list},
    {"GET", "/v1/files/{model}", ROUTE_LOOK, NULL, files_get},
    {"DELETE", "/v1/files/{model}", ROUTE_LOOK, NULL, files_delete},
    {"POST", "/v1/batches", ROUTE_LOOK, NULL, batches_create},
    {"GET", "/v1/batches", ROUTE_LOOK, NULL, batches_list},
    {"GET", "/v1/batches/{model}", ROUTE_LOOK, NULL, batches_get},
    {"POST", "/v1/batches/{model}", ROUTE_LOOK, NULL, batches_cancel},
    {"POST", "/v1/messages", ROUTE_ANSWER, &anthropic, anthropic_ask},
    {"POST", "/v1/messages/count_tokens", ROUTE_MODEL, &anthropic, anthropic_count},
    {"POST", "/api/chat", ROUTE_ANSWER, &ollama_chat, ollama_ask_chat},
    {"POST", "/api/generate", ROUTE_ANSWER, &ollama_generate, ollama_ask_generate},
    {"POST", "/api/embed", ROUTE_ANSWER, &ollama_embedding, embed_ask},
    {"POST", "/api/embeddings", ROUTE_ANSWER, &ollama_one_embedding, embed_ask},
    {"POST", "/api/pull", ROUTE_LOOK, &ollama_chat, ollama_pull},
    {"POST", "/api/show", ROUTE_LOOK, &ollama_chat, ollama_show},
    {"GET", "/api/tags", ROUTE_LOOK, &ollama_chat, ollama_tags},
    {"GET", "/api/ps", ROUTE_LOOK, &ollama_chat, ollama_ps},
    {"GET", "/api/version", ROUTE_LOOK, &ollama_chat, ollama_version},
};
const size_t server_n_route = NUM_COUNT(server_routes);
