/* tandem keygen: makes the keys by which programs know each other over tcp. */
#include "orchestrator/cli/commands.h"
#include "wire/keys.h"
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define ALL_ROLES                                                                                            \
  (KEYS_ROLE(WIRE_ROLE_ORCHESTRATOR) | KEYS_ROLE(WIRE_ROLE_TARGET) | KEYS_ROLE(WIRE_ROLE_DRAFT))

static int roles_of(const flags *f, unsigned *out) {
  *out = f->given.argument_count ? 0 : ALL_ROLES;
  for (int32_t i = 0; i < f->given.argument_count; i++) {
    const char *name = f->given.arguments[i];
    wire_role role = keys_role_of(name, strlen(name));
    if (!role)
      return command_error(STATUS_USAGE,
                           "'%s' is no role: give orchestrator, target, draft, or nothing for all", name);
    *out |= KEYS_ROLE(role);
  }
  return STATUS_OK;
}

/* A key that is there already is kept, and the others are made all the same. */
static int create(const char *folder, unsigned roles, const char *name, int *made) {
  int status = STATUS_OK;
  for (int role = WIRE_ROLE_ORCHESTRATOR; role <= WIRE_ROLE_DRAFT; role++) {
    key_bytes public;
    err e = {0};
    if (!(roles & KEYS_ROLE(role))) continue;
    if (keys_create(folder, (wire_role)role, name, &public, &e) != ERR_OK) {
      status = command_error(STATUS_IO, "%s", e.text);
      continue;
    }
    printf("%s %s\n", keys_role_name((wire_role)role), key_hex_of(&public).text);
    ++*made;
  }
  return status;
}

static void explain(const char *folder) {
  fprintf(
      stderr,
      "tandem: these public keys are in %s/" KEYS_ALLOWED "; the secret ones lie beside it and stay there\n"
      "tandem: on this machine no more is to do. For others, run `tandem keygen ROLE' there, put the lines "
      "of all the\n"
      "tandem: " KEYS_ALLOWED " files together, and copy that file to each (docs/SEVERAL_MACHINES.md)\n",
      folder);
}

int command_keygen(int argc, char **argv) {
  char folder[PATH_MAX], host[KEYS_NAME_MAX + 1] = "here";
  err e = {0};
  flags f;
  unsigned roles;
  int made = 0;
  flags_parse(&f, COMMAND_KEYGEN, argc, argv);
  int status = roles_of(&f, &roles);
  if (status == STATUS_OK && keys_folder(f.given.keys, folder, &e) != ERR_OK)
    status = command_error(STATUS_USAGE, "%s", e.text);
  gethostname(host, sizeof host - 1);
  if (status == STATUS_OK) status = create(folder, roles, f.given.key_name ? f.given.key_name : host, &made);
  if (made) explain(folder);
  flags_fini(&f);
  return fflush(stdout) == 0 ? status : STATUS_IO;
}
