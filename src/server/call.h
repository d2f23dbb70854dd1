/* call.h - the checked body of a request for an answer: after call_parse every number is in its range and
 * every pointer is valid. Unknown members are ignored, and null is the same as a missing member. */
#ifndef NIB_SERVER_CALL_H
#define NIB_SERVER_CALL_H

#include "server/fault.h"

typedef enum call_kind { CALL_CHAT, CALL_COMPLETION } call_kind;

enum { CALL_MAX_CHOICES = 16, CALL_MAX_STOPS = 16, CALL_MAX_PROMPTS = 64, CALL_MAX_BIAS = 1024 };

typedef enum tool_choice { TOOLS_AUTO, TOOLS_REQUIRED, TOOLS_NAMED } tool_choice;

typedef struct call {
    call_kind kind;
    json_t *body;     /* what the pointers below point into */
    json_t *messages; /* CALL_CHAT: role and a text as content; an array */
    json_t *tools; /* CALL_CHAT: an array for the template, as chats have it; NULL: none. The body's, or: */
    json_t *made;  /* tools that another API has otherwise; NULL: they are not */
    const char *schema_name; /* where such an API has a tool's schema; NULL: where chats have it */
    json_t *prompts;         /* CALL_COMPLETION: an array of texts and of arrays of ids */
    nib_sampling sampling;
    int64_t max_tokens; /* -1: as many as fit */
    int64_t seed;
    bool has_seed;
    int32_t n; /* answers to each prompt */
    bool stream, usage, ignore_eos, echo;
    bool logprobs;
    int32_t n_top; /* with logprobs */
    nib_logit_bias *bias;
    size_t n_bias;
    const char *stop[CALL_MAX_STOPS];
    size_t n_stop;
    char *grammar; /* of the answer (GBNF); NULL: any text */
    tool_choice choice;
    const char *tool_name; /* of TOOLS_NAMED: one of the tools */
    bool one_call;         /* parallel_tool_calls is false */
    bool whole_speech;     /* reasoning_format none: what is thought is not split off */
    const char *prefill; /* what the answer begins with, at the end of the prompt; NULL: nothing (tools.c) */
} call;

/* False: *why says what was expected and what was found. The call is to be cleared in any case. */
bool call_parse(call_kind kind, const char *text, size_t n_byte, call *out, fault *why);
void call_clear(call *c);

/* The same from the bodies of other APIs, which become calls for chats: of Ollama's /api/chat and
 * /api/generate (with "raw" a text to be continued; without messages or prompt both are NULL: the model is to
 * be loaded, no more), and of Anthropic's /v1/messages. */
bool call_parse_ollama_chat(const char *text, size_t n_byte, call *out, fault *why);
bool call_parse_ollama_generate(const char *text, size_t n_byte, call *out, fault *why);
bool call_parse_responses(const char *text, size_t n_byte, call *out,
                          fault *why); /* OpenAI's /v1/responses */
/* `answers`: whether max_tokens has to be there, as where an answer is asked for. */
bool call_parse_anthropic(const char *text, size_t n_byte, bool answers, call *out, fault *why);

/* Numbers, texts and truths of a body by a table; other modules of the server parse their own with it. */
typedef enum member_kind { MEMBER_BOOL, MEMBER_FLOAT, MEMBER_I32, MEMBER_I64, MEMBER_TEXT } member_kind;
typedef struct member {
    const char *name;
    member_kind kind;
    size_t offset; /* of a bool, float, int32_t, int64_t or const char * */
    double min, max;
} member;
typedef struct member_table {
    const member *rows;
    size_t n;
} member_table;
bool members_read(const json_t *object, const member_table *table, void *out, fault *why);
/* What the bodies of each API have; openapi.c describes them from the same rows. */
extern const member_table openai_members, openai_chat_members, openai_completion_members,
    openai_stream_members, ollama_members, ollama_options, ollama_generate_members, anthropic_members,
    responses_members, tokenize_members;
/* The body as an object; NULL: *why says what it is instead. */
json_t *body_parse(const char *text, size_t n_byte, fault *why);

#endif
