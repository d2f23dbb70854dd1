/* openai.h - answers of OpenAI's API: chat completions, and completions. */
#ifndef NIB_SERVER_OPENAI_H
#define NIB_SERVER_OPENAI_H

#include "server/dialect.h"

extern const dialect openai_chat, openai_completion;

#endif
