#include "draft_worker/drafters/replay.h"

#include "common/base/program.h"
#include "common/base/rng.h"
#include <assert.h>
#include <errno.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define RECORDS_MAX 1000000
#define RATE_MIN    0.01 /* scores stay finite */
#define SIBLING_MIN 0.001

typedef struct record {
  int32_t *ids; /* [prompt_count + output_count] */
  int32_t prompt_count, output_count;
} record;

struct replay_recording {
  record *records;
  int32_t count, capacity;
  int32_t *vocabulary; /* every id that occurs, ascending: where wrong ones come from */
  int32_t vocabulary_count;
  double rate, sibling;
  uint32_t key[2];
  float first_score, second_score;
};

/* --- reading --- */

static int bad_line(err *e, const char *path, long line, const char *why) {
  return err_set(e, ERR_FORMAT, "%s, line %ld: %s; a recording is an output of 'tandem batch'", path, line,
                 why);
}

/* Appends a JSON array's ids to r->ids. */
static int add_ids(record *r, const json_t *array, int32_t *count, err *e, const char *path, long line) {
  size_t n = json_array_size(array), have = (size_t)r->prompt_count + (size_t)r->output_count;
  if (!json_is_array(array)) return bad_line(e, path, line, "no prompt_ids or no token_ids");
  if (n > WIRE_CONTEXT_MAX - have) return bad_line(e, path, line, "more tokens than a context can have");
  int32_t *grown = realloc(r->ids, (have + n + 1) * sizeof *grown);
  if (!grown) return err_set(e, ERR_NOMEM, "out of memory for the recording %s", path);
  r->ids = grown;
  for (size_t i = 0; i < n; i++) {
    const json_t *id = json_array_get(array, i);
    json_int_t value = json_integer_value(id);
    if (!json_is_integer(id) || value < 0 || value > INT32_MAX)
      return bad_line(e, path, line, "an id is no token id");
    r->ids[have + i] = (int32_t)value;
  }
  *count = (int32_t)n;
  return ERR_OK;
}

static record *add_record(replay_recording *b) {
  if (b->count == b->capacity) {
    int32_t capacity = b->capacity ? 2 * b->capacity : 64;
    record *grown = realloc(b->records, (size_t)capacity * sizeof *grown);
    if (!grown) return NULL;
    b->records = grown;
    b->capacity = capacity;
  }
  b->records[b->count] = (record){0};
  return &b->records[b->count++];
}

static int read_line(replay_recording *b, const char *text, size_t size, const char *path, long line,
                     err *e) {
  json_error_t why;
  if (b->count == RECORDS_MAX) return err_set(e, ERR_LIMIT, "%s has more than %d lines", path, RECORDS_MAX);
  json_t *object = json_loadb(text, size, JSON_REJECT_DUPLICATES, &why);
  if (!object) return bad_line(e, path, line, why.text);
  record *r = add_record(b);
  int rc = r ? ERR_OK : err_set(e, ERR_NOMEM, "out of memory for the recording %s", path);
  if (rc == ERR_OK) rc = add_ids(r, json_object_get(object, "prompt_ids"), &r->prompt_count, e, path, line);
  if (rc == ERR_OK) rc = add_ids(r, json_object_get(object, "token_ids"), &r->output_count, e, path, line);
  json_decref(object);
  return rc;
}

static int read_lines(replay_recording *b, FILE *file, const char *path, err *e) {
  char *text = NULL;
  size_t room = 0;
  ssize_t size;
  int rc = ERR_OK;
  errno = 0;
  for (long line = 1; rc == ERR_OK && (size = getline(&text, &room, file)) >= 0; line++) {
    while (size > 0 && (text[size - 1] == '\n' || text[size - 1] == '\r')) size--;
    if (size > 0) rc = read_line(b, text, (size_t)size, path, line, e);
  }
  if (rc == ERR_OK && ferror(file)) rc = err_set(e, ERR_IO, "cannot read %s: %s", path, strerror(errno));
  if (rc == ERR_OK && b->count == 0)
    rc = err_set(e, ERR_FORMAT, "%s is empty: it holds no recorded answer", path);
  free(text);
  return rc;
}

static int by_value(const void *a, const void *b) {
  int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
  return x < y ? -1 : x > y;
}

static int collect_vocabulary(replay_recording *b, err *e) {
  size_t total = 0, used = 0;
  for (int32_t i = 0; i < b->count; i++)
    total += (size_t)(b->records[i].prompt_count + b->records[i].output_count);
  int32_t *ids = malloc((total + 1) * sizeof *ids);
  if (!ids) return err_set(e, ERR_NOMEM, "out of memory for the recording");
  for (int32_t i = 0; i < b->count; i++) {
    size_t n = (size_t)(b->records[i].prompt_count + b->records[i].output_count);
    if (n) memcpy(ids + used, b->records[i].ids, n * sizeof *ids);
    used += n;
  }
  qsort(ids, total, sizeof *ids, by_value);
  used = 0;
  for (size_t i = 0; i < total; i++)
    if (used == 0 || ids[used - 1] != ids[i]) ids[used++] = ids[i];
  b->vocabulary = ids;
  b->vocabulary_count = (int32_t)used;
  return ERR_OK;
}

static float score_of(double probability, double least) {
  return (float)log(probability > least ? probability : least);
}

int replay_recording_open(replay_recording **out, const char *path, double rate, double sibling,
                          uint64_t seed, err *e) {
  *out = NULL;
  assert(rate >= 0 && rate <= 1 && sibling >= 0 && sibling <= 1);
  FILE *file = fopen(path, "r");
  if (!file) return err_set(e, ERR_IO, "cannot read the recording %s: %s", path, strerror(errno));
  replay_recording *b = calloc(1, sizeof *b);
  int rc = b ? ERR_OK : err_set(e, ERR_NOMEM, "out of memory for the recording %s", path);
  if (rc == ERR_OK) rc = read_lines(b, file, path, e);
  if (rc == ERR_OK) rc = collect_vocabulary(b, e);
  fclose(file);
  if (rc != ERR_OK) {
    replay_recording_close(b);
    return rc;
  }
  b->rate = rate;
  b->sibling = sibling;
  b->key[0] = (uint32_t)seed;
  b->key[1] = (uint32_t)(seed >> 32);
  b->first_score = score_of(rate, RATE_MIN);
  b->second_score = score_of((1 - rate) * sibling, SIBLING_MIN);
  *out = b;
  return ERR_OK;
}

/* --- the argument of --draft replay --- */

/* FILE may hold colons: RATE and S are taken from the end. S is there when what follows both of the last two
 * colons is a number and something is left for FILE. */
static int split_argument(char *text, char **rate, char **sibling, err *e) {
  char *last = strrchr(text, ':');
  if (last) *last = 0;
  char *before = last ? strrchr(text, ':') : NULL;
  double number;
  if (before && before > text && program_double("RATE", before + 1, 0, 1, &number, NULL) == ERR_OK) {
    *before = 0;
    *rate = before + 1;
    *sibling = last + 1;
  } else if (last && last > text) {
    *rate = last + 1;
  } else {
    return err_set(e, ERR_ARG, "--draft replay is replay:FILE:RATE or replay:FILE:RATE:S");
  }
  return ERR_OK;
}

int replay_recording_open_argument(replay_recording **out, const char *argument, uint64_t seed, err *e) {
  char *path = strdup(argument), *rate = NULL, *sibling = NULL;
  double r = 0, s = 0;
  if (!path) return err_set(e, ERR_NOMEM, "out of memory");
  int rc = split_argument(path, &rate, &sibling, e);
  if (rc == ERR_OK) rc = program_double("RATE of --draft replay", rate, 0, 1, &r, e);
  if (rc == ERR_OK && sibling) rc = program_double("S of --draft replay", sibling, 0, 1, &s, e);
  if (rc == ERR_OK) rc = replay_recording_open(out, path, r, s, seed, e);
  free(path);
  return rc;
}

void replay_recording_close(replay_recording *b) {
  if (!b) return;
  for (int32_t i = 0; i < b->count; i++) free(b->records[i].ids);
  free(b->records);
  free(b->vocabulary);
  free(b);
}

/* --- the drafter --- */

struct immediate_session {
  const replay_recording *recording;
  int32_t prompt_length;
  int32_t length; /* of C, and its hash: what the record has been compared with */
  hash16 hash;
  int32_t at; /* record that fits, or -1 */
};

/* Is C a beginning of this record, with the same prompt? */
static bool fits(const immediate_session *d, const record *r, const prefix *c, int32_t from) {
  if (r->prompt_count != d->prompt_length || c->length > r->prompt_count + r->output_count) return false;
  return memcmp(r->ids + from, c->tokens + from, (size_t)(c->length - from) * sizeof *r->ids) == 0;
}

/* The first record that fits. The one in use needs only what C has gained compared. */
static void choose_record(immediate_session *d, const prefix *c) {
  const replay_recording *b = d->recording;
  bool grown = d->at >= 0 && prefix_has(c, d->length, d->hash);
  int32_t i = d->at;
  if (!grown || !fits(d, &b->records[i], c, d->length))
    for (i = 0; i < b->count && !fits(d, &b->records[i], c, 0);) i++;
  d->at = i < b->count ? i : -1;
  d->length = c->length;
  d->hash = prefix_hash(c);
}

static immediate_session *replay_open(void *shared, const prefix *committed, int32_t prompt_length,
                                      const msg_options *options) {
  (void)options;
  immediate_session *d = calloc(1, sizeof *d);
  if (!d) return NULL;
  *d = (immediate_session){.recording = shared, .prompt_length = prompt_length, .at = -1};
  choose_record(d, committed);
  return d;
}

static void replay_close(immediate_session *d) {
  free(d);
}

static void replay_advance(immediate_session *d, const prefix *committed) {
  choose_record(d, committed);
}

/* Another id than `right`; false: the recordings know no other. */
static bool wrong_token(const replay_recording *b, int32_t right, uint32_t draw, int32_t *out) {
  if (b->vocabulary_count < 2) return false;
  uint32_t i = draw % (uint32_t)b->vocabulary_count;
  if (b->vocabulary[i] == right) i = (i + 1) % (uint32_t)b->vocabulary_count;
  *out = b->vocabulary[i];
  return true;
}

/* One draw a position of the sequence: the same whatever the path, so that nodes below a wrong one cost a
 * verify as much as those below a right one. */
static int32_t replay_candidates(immediate_session *d, const int32_t *path, int32_t depth,
                                 draft_candidate *out) {
  const replay_recording *b = d->recording;
  (void)path;
  if (d->at < 0) return 0;
  const record *r = &b->records[d->at];
  int32_t position = d->length + depth, n = 0, wrong;
  if (position >= r->prompt_count + r->output_count) return 0;
  int32_t right = r->ids[position];
  philox_block draw = philox4x32((const uint32_t[4]){(uint32_t)position, 0, 0, 0}, b->key);
  if ((double)philox_unit(draw.lane[0]) < b->rate) {
    out[n++] = (draft_candidate){.token = right, .score = b->first_score};
    return n;
  }
  if (wrong_token(b, right, draw.lane[2], &wrong))
    out[n++] = (draft_candidate){.token = wrong, .score = b->first_score};
  if ((double)philox_unit(draw.lane[1]) < b->sibling)
    out[n++] = (draft_candidate){.token = right, .score = b->second_score};
  return n;
}

const immediate_kind replay_kind = {"replay",       replay_open,       replay_close,
                                    replay_advance, replay_candidates, NULL};
