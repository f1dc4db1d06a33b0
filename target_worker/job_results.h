/* job_results.h - applies the engine's results to their sessions: C grows, the draft tree is re-rooted, and
 * the orchestrator and the drafts are sent the tokens; or a verify has failed, and the session decodes
 * plainly from then on. */
#pragma once

#include "target_worker/step_context.h"
#include "target_worker/verifier.h"

void job_results_apply(step_context *c, verifier *v, const engine_results *results);
