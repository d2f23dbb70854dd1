/* ollama.h - Ollama's API. */
#ifndef NIB_SERVER_OLLAMA_H
#define NIB_SERVER_OLLAMA_H

#include "server/exchange.h"

void ollama_ask_chat(exchange *x);
void ollama_ask_generate(exchange *x);
void ollama_tags(exchange *x);
void ollama_ps(exchange *x);
void ollama_show(exchange *x);
void ollama_pull(exchange *x);
json_t *ollama_refusal(const fault *why); /* the body of a refusal; NULL: out of memory */
/* keep_alive ("5m", 300, -1) in seconds; INFINITY: for ever; NAN: not given. False: *why. */
bool ollama_keep_alive(const json_t *body, double *out, fault *why);
/* Whether the request only loads the model. */
bool ollama_asks_nothing(const json_t *body);
void ollama_version(exchange *x);

extern const dialect ollama_chat, ollama_generate;

#endif
