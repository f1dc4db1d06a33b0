#include "orchestrator/service/api/stream_id.h"

#include <ctype.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

uint64_t stream_id_hash(const char *text, size_t size) {
  const hash16 all = hash_bytes(text, size);
  uint64_t h = 0;
  for (size_t i = 0; i < sizeof h; i++) h = h << 8 | all.bytes[i];
  return h;
}

void stream_id_format(const stream_id *id, char out[STREAM_ID_TEXT_MAX + 1]) {
  char *at = out;
  at += sprintf(at, "%s:%" PRIx64 ":%" PRIx64, id->name, (uint64_t)id->created, id->seed);
  for (int32_t i = 0; i < id->count; i++) {
    const stream_offset *p = &id->offsets[i];
    at += sprintf(at, "%c%zx.%" PRIx32 ".%" PRIx64 "%s", i == 0 ? ':' : ',', p->bytes, (uint32_t)p->tokens,
                  p->hash, p->over ? "!" : "");
  }
}

/* A number of lower-case hex digits, up to `most`, then the character `end`; it moves *at behind that. */
static bool take_hex(const char **at, char end, uint64_t most, uint64_t *out) {
  char *rest;
  if (!isxdigit((unsigned char)**at) || isupper((unsigned char)**at) || strncmp(*at, "0x", 2) == 0)
    return false;
  const size_t digits = strspn(*at, "0123456789abcdef");
  *out = strtoull(*at, &rest, 16);
  if (digits > 16 || *out > most || *rest != end) return false;
  *at = rest + 1;
  return true;
}

/* Of the last offset the hash is followed by the end of the text. */
static bool take_offset(const char **at, stream_offset *p) {
  uint64_t bytes, tokens;
  if (!take_hex(at, '.', SIZE_MAX / 2, &bytes) || !take_hex(at, '.', INT32_MAX, &tokens)) return false;
  const size_t digits = strspn(*at, "0123456789abcdef");
  if (digits == 0 || digits > 16) return false;
  *p = (stream_offset){bytes, (int32_t)tokens, strtoull(*at, NULL, 16), false};
  *at += digits;
  if (**at == '!') p->over = true, (*at)++;
  return true;
}

static bool take_name(const char **at, stream_id *out) {
  const char *end = strchr(*at, ':');
  const size_t size = end ? (size_t)(end - *at) : 0;
  if (size == 0 || size > STREAM_ID_NAME_MAX) return false;
  memcpy(out->name, *at, size);
  for (size_t i = 0; i < size; i++)
    if (!isalnum((unsigned char)out->name[i]) && out->name[i] != '-') return false;
  *at = end + 1;
  return true;
}

static bool take_all(const char *at, stream_id *out) {
  uint64_t created;
  if (!take_name(&at, out) || !take_hex(&at, ':', INT64_MAX, &created) ||
      !take_hex(&at, ':', UINT64_MAX, &out->seed))
    return false;
  out->created = (int64_t)created;
  while (out->count < STREAM_ID_CHOICES_MAX && take_offset(&at, &out->offsets[out->count])) {
    out->count++;
    if (*at == 0) return true;
    if (*at++ != ',') return false;
  }
  return false;
}

int stream_id_parse(stream_id *out, const char *text, err *e) {
  *out = (stream_id){.count = 0};
  if (take_all(text, out)) return ERR_OK;
  return err_set(e, ERR_FORMAT,
                 "Last-Event-ID is not the id of an event of this API: send the event_id of the last event "
                 "of the stream "
                 "that was cut, or none");
}
