/* job_results.h - what the engine's results do to their sessions: C grows, the draft tree is re-rooted,
 * everybody is sent the tokens; or a verify fails and the session decodes plainly. */
#pragma once

#include "target_worker/step_context.h"
#include "target_worker/verifier.h"

void job_results_apply(step_context *c, verifier *v, const engine_results *results);
