/* same_request.h - do two requests ask for the same? */
#pragma once

#include "orchestrator/service/request.h"
#include <string.h>

bool same_text(const char *a, const char *b);

bool same_prompt(const request *a, const request *b);

bool same_sampling(const sampler_options *a, const sampler_options *b);

/* How it is to be answered: all but the prompt. */
bool same_options(const request *a, const request *b);
