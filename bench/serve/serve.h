/* serve.h - `tandem bench serve URL PROMPTS`: a load on any server that speaks OpenAI's API. */
#pragma once

/* argv[0] is what messages begin with. Returns an exit status of common/base/program.h. */
int bench_serve(int argc, char **argv);
