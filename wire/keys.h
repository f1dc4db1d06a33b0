/* keys.h - the files that say who a program is and whom it trusts (docs/decisions/security.md).
 *
 * A folder holds ROLE.key, the secret key of this account's programs of that role (one line, "secret KEY",
 * mode 0600), and `allowed`, the public keys of programs that are trusted, this account's own among them: a
 * line "ROLE KEY NAME" each. A key has 64 hexadecimal digits. Empty lines and those that begin with # are
 * left out. The keys are those of CURVE (curve25519). */
#pragma once

#include "common/base/err.h"
#include "wire/key.h"
#include "wire/message.h"
#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define KEYS_FILE_MAX   65536 /* bytes of one of the files */
#define KEYS_MAX        512   /* lines with a key in `allowed` */
#define KEYS_ALLOWED    "allowed"
#define KEYS_NAME_MAX   64 /* bytes of a NAME that keys_create writes */
#define KEYS_ROLE_COUNT 3

const char *keys_role_name(wire_role role); /* "target" */
/* The role of this name; 0: there is none. */
wire_role keys_role_of(const char *name, size_t size);
/* A set of roles; every peer has one in an allow-list. */
#define KEYS_ROLE(role) (1U << (role))

/* Writes the folder to out[PATH_MAX]: `given` (of --keys), or that of the XDG base directories. ERR_ARG:
 * there is neither HOME nor XDG_CONFIG_HOME. */
int keys_folder(const char *given, char out[PATH_MAX], err *e);

typedef struct keys keys;

/* Reads this role's secret key and the allow-list. ERR_IO, ERR_FORMAT, ERR_LIMIT: the sentence names the file
 * and what to do. */
int keys_open(keys **out, const char *folder, wire_role role, err *e);
void keys_close(keys *k); /* wipes the secret; NULL is allowed */

const key_bytes *keys_secret(const keys *k);
const key_bytes *keys_public(const keys *k);
const char *keys_allowed_path(const keys *k);

/* What the allow-list says a key may be: a set of KEYS_ROLE, 0: nothing. Reads the file again if it has
 * changed; *e tells why it cannot be read, and then nobody is allowed. */
unsigned keys_roles(keys *k, const key_bytes *public, err *e);
/* The only orchestrator of the allow-list. ERR_ARG: there is none, or more than one. */
int keys_orchestrator(keys *k, key_bytes *out, err *e);

/* Makes the keys of one role: ROLE.key and a line of `allowed` with `name`. The folder (mode 0700) is made if
 * it is not there. ERR_STATE: ROLE.key is there already, and stays as it is. */
int keys_create(const char *folder, wire_role role, const char *name, key_bytes *public, err *e);
