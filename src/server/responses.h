/* responses.h - OpenAI's API of responses. */
#ifndef NIB_SERVER_RESPONSES_H
#define NIB_SERVER_RESPONSES_H

#include "server/exchange.h"

void responses_ask(exchange *x);

extern const dialect openai_responses;

#endif
