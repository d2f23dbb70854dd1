/* call.h - the checked body of a request for an answer: after call_parse every number is in its range and
 * every pointer is valid. Unknown members are ignored, and null is the same as a missing member. */
#ifndef NIB_SERVER_CALL_H
#define NIB_SERVER_CALL_H

#include "server/fault.h"
#include "server/server.h"

typedef enum call_kind { CALL_CHAT, CALL_COMPLETION } call_kind;

enum { CALL_MAX_CHOICES = 16, CALL_MAX_STOPS = 16, CALL_MAX_PROMPTS = 64, CALL_MAX_BIAS = 1024 };

typedef enum tool_choice { TOOLS_AUTO, TOOLS_REQUIRED, TOOLS_NAMED } tool_choice;

typedef struct call {
    call_kind kind;
    const char *text; /* of the body [n_text]: valid until the request is handled */
    size_t n_text;
    json_t *body;     /* owner of the memory that the pointers below point to */
    json_t *messages; /* CALL_CHAT: an array of objects with a role and a text as content */
    json_t *tools; /* CALL_CHAT: an array in the form of OpenAI's chats, for the template; NULL: none. It is
                      part of the body, or of `made` */
    json_t *variables;       /* CALL_CHAT: more variables for the template; NULL: none */
    json_t *made;            /* owns tools that were converted from another API's form; NULL: not converted */
    const char *schema_name; /* that API's member with a tool's schema; NULL: as in OpenAI's chats */
    json_t *prompts;         /* CALL_COMPLETION: an array of texts and of arrays of ids */
    nib_sampling sampling;
    int64_t max_tokens; /* -1: as many as fit */
    int64_t min_tokens; /* before so many no token and no stop string ends the answer */
    int64_t seed;
    bool has_seed; /* otherwise a random seed is used */
    int32_t n;     /* answers for each prompt */
    bool stream, usage, ignore_eos, echo;
    bool continues;   /* CALL_CHAT: the answer continues the text of the last message */
    bool no_new_turn; /* CALL_CHAT: the prompt ends with the last message */
    bool logprobs;
    int32_t n_top; /* with logprobs: alternatives for each token */
    nib_logit_bias *bias;
    size_t n_bias;
    const char *stop[CALL_MAX_STOPS];
    size_t n_stop;
    char *grammar; /* constrains the answer (GBNF); NULL: any text */
    tool_choice choice;
    const char *tool_name; /* TOOLS_NAMED: the tool to call */
    bool one_call;         /* parallel_tool_calls is false */
    const char **breakers; /* DRY's, if the request has some */
    bool whole_speech;     /* reasoning_format none: reasoning stays part of the text */
    const char *prefill;   /* the answer's beginning, which is appended to the prompt; NULL: none (tools.c) */
} call;

/* Parses the body text [n_byte]; what it leaves out is as in `usual`. False: *why has what was expected and
 * what was found. The caller clears *out in any case. */
bool call_parse(call_kind kind, const char *text, size_t n_byte, const server_defaults *usual, call *out,
                fault *why);
void call_clear(call *c);
/* Frees what only the prompts and the batch's requests are made from: while the call is answered, only tools,
 * the choice among them, stop strings, and prompts that the answer repeats are left. */
void call_reduce(call *c);

/* The same for the bodies of other APIs, which are converted to chat calls: Ollama's /api/chat and
 * /api/generate (with "raw": a completion; without messages or prompt, both members are NULL and the request
 * only loads the model), and Anthropic's /v1/messages. */
bool call_parse_ollama_chat(const char *text, size_t n_byte, const server_defaults *usual, call *out,
                            fault *why);
bool call_parse_ollama_generate(const char *text, size_t n_byte, const server_defaults *usual, call *out,
                                fault *why);
bool call_parse_responses(const char *text, size_t n_byte, const server_defaults *usual, call *out,
                          fault *why); /* OpenAI's /v1/responses */
/* answers: the request generates an answer, so max_tokens is required. */
bool call_parse_anthropic(const char *text, size_t n_byte, bool answers, const server_defaults *usual,
                          call *out, fault *why);

/* Reads numbers, texts and booleans of an object by a table; other files of the server use it too. False:
 * *why names the wrong member. */
typedef enum member_kind { MEMBER_BOOL, MEMBER_FLOAT, MEMBER_I32, MEMBER_I64, MEMBER_TEXT } member_kind;
typedef struct member {
    const char *name;
    member_kind kind;
    size_t offset; /* in *out, of a bool, float, int32_t, int64_t or const char * */
    double min, max;
} member;
typedef struct member_table {
    const member *rows;
    size_t n;
} member_table;
bool members_read(const json_t *object, const member_table *table, void *out, fault *why);
/* The members of each API's bodies; openapi.c describes them from the same rows. */
extern const member_table openai_members, openai_chat_members, openai_completion_members, ollama_members,
    ollama_options, ollama_generate_members, anthropic_members, responses_members, sampler_members,
    tokenize_members;
/* Parses a body, which must be an object; the caller frees it with json_decref. NULL: *why is set. */
json_t *body_parse(const char *text, size_t n_byte, fault *why);

#endif
