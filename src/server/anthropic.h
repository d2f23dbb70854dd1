/* anthropic.h - Anthropic's API. */
#ifndef NIB_SERVER_ANTHROPIC_H
#define NIB_SERVER_ANTHROPIC_H

#include "server/exchange.h"

void anthropic_ask(exchange *x);
void anthropic_count(exchange *x);

extern const dialect anthropic;

#endif
