/* tandem doctor: looks at what tandem needs, and says what to do about what is missing. */
#include "common/base/clock.h"
#include "common/base/program.h"
#include "common/base/utf8.h"
#include "common/file/head_file.h"
#include "common/file/head_lookup.h"
#include "common/text/vocabulary_map.h"
#include "orchestrator/cli/commands.h"
#include "orchestrator/service/child_processes.h"
#include "orchestrator/service/result_json.h"
#include "version.h"
#include "wire/keys.h"
#include "wire/transport.h"
#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>
#include <unistd.h>

#define VERSION_MAX    4096
#define MEMORY_LOW_KB  (512u << 10) /* less free memory than this is mentioned */
#define FRAME_WAIT_MS  2000
#define LINE_MAX_BYTES (ERR_TEXT_MAX + PATH_MAX + 400)

typedef struct doctor {
  const flags *flags;
  json_t *checks; /* of --json: {check, ok, text, and what else is known} */
  int failed;
} doctor;

/* One line for people, at once, or one object of --json: borrowed, so that more can be said there; it may be
 * NULL. */
static json_t *say(doctor *d, bool ok, const char *what, const char *format, va_list args) {
  char text[LINE_MAX_BYTES];
  vsnprintf(text, sizeof text, format, args);
  d->failed += !ok;
  if (!d->flags->given.json) printf("%-5s %-9s %s\n", ok ? "ok" : "BAD", what, text);
  json_t *check =
      json_pack("{s:s, s:b, s:s%}", "check", what, "ok", ok, "text", text, utf8_valid(text, strlen(text)));
  json_array_append_new(d->checks, check);
  return check;
}

static json_t *good(doctor *d, const char *what, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
static json_t *good(doctor *d, const char *what, const char *format, ...) {
  va_list args;
  va_start(args, format);
  json_t *check = say(d, true, what, format, args);
  va_end(args);
  return check;
}

static json_t *bad(doctor *d, const char *what, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
static json_t *bad(doctor *d, const char *what, const char *format, ...) {
  va_list args;
  va_start(args, format);
  json_t *check = say(d, false, what, format, args);
  va_end(args);
  return check;
}

/* ---- processor and memory ---- */

/* The value of "KEY : VALUE" in a file of /proc, or "". */
static void read_key(const char *path, const char *key, char *out, size_t size) {
  char line[512];
  FILE *file = fopen(path, "re");
  *out = 0;
  while (file && !*out && fgets(line, sizeof line, file)) {
    char *colon = strchr(line, ':');
    if (!colon || strncmp(line, key, strlen(key)) != 0) continue;
    snprintf(out, size, "%s", colon + 1 + strspn(colon + 1, " \t"));
    out[strcspn(out, "\n")] = 0;
  }
  if (file) fclose(file);
}

static void check_cpu(doctor *d) {
  char model[200];
  struct utsname name;
  read_key("/proc/cpuinfo", "model name", model, sizeof model);
  if (!*model) snprintf(model, sizeof model, "%s", uname(&name) == 0 ? name.machine : "unknown");
  json_t *check = good(d, "cpu", "%s; %d processors for this process", model, program_processors());
  json_object_set_new(check, "processors", json_integer(program_processors()));
}

static void check_memory(doctor *d) {
  char total[64], available[64];
  read_key("/proc/meminfo", "MemTotal", total, sizeof total);
  read_key("/proc/meminfo", "MemAvailable", available, sizeof available);
  unsigned long long kb = strtoull(available, NULL, 10);
  good(d, "memory", "%s, %s available%s", total, available,
       kb < MEMORY_LOW_KB ? ": little; a model must fit into it with its cache" : "");
}

/* ---- models ---- */

static void check_template(doctor *d, const text_model *m) {
  if (!m->tokens)
    good(d, "template", "none: %s", m->chat_error.text);
  else if (m->chat)
    good(d, "template", "%s, built in", chat_template_name(m->chat));
  else
    bad(d, "template", "%s", m->chat_error.text);
}

static json_t *describe(doctor *d, const char *what, text_model *m) {
  const model_config *c = &m->config;
  char hash[33];
  text_model_hash(m, NULL);
  hash_format(m->hash, hash);
  json_t *check = good(d, what, "%d layers of %d, %d heads (%d of keys), vocabulary %d, context %d, hash %s",
                       c->layers, c->embed, c->heads, c->kv_heads, c->vocab, c->context, hash);
  const struct {
    const char *name;
    int32_t value;
  } facts[] = {{"layers", c->layers},     {"embed", c->embed},      {"heads", c->heads},
               {"kv_heads", c->kv_heads}, {"vocabulary", c->vocab}, {"context", c->context}};
  for (size_t i = 0; i < sizeof facts / sizeof *facts; i++)
    json_object_set_new(check, facts[i].name, json_integer(facts[i].value));
  json_object_set_new(check, "hash", json_string(hash));
  return check;
}

/* Whether tandem-draft would accept the two together. */
static void check_fit(doctor *d, const text_model *target, const text_model *draft) {
  vocabulary_map b = {0};
  err e = {0};
  if (vocabulary_map_open(&b, target->file, draft->file, &e)) {
    bad(d, "fit", "the draft does not fit the model, and answers would come plainly: %s", e.text);
    return;
  }
  int32_t partners = 0;
  for (int32_t i = 0; i < b.target_count; i++) partners += b.same ? i < b.draft_count : b.to_draft[i] >= 0;
  json_t *check = good(d, "fit", "the draft can guess %d of the model's %d tokens%s", partners,
                       b.target_count, b.same ? ", by the same ids" : ", by other ids in part");
  json_object_set_new(check, "partners", json_integer(partners));
  json_object_set_new(check, "same_ids", json_boolean(b.same));
  vocabulary_map_fini(&b);
}

/* Reads the vocabulary only where it is used: a draft works with the text of its target. */
static bool open_model(doctor *d, const char *what, const char *path, bool with_text, text_model *m) {
  err e = {0};
  int rc = text_model_open(m, path, &e);
  if (rc == ERR_OK && with_text) rc = text_model_load(m, NULL, &e);
  if (rc)
    bad(d, what, "%s", e.text);
  else
    describe(d, what, m);
  return rc == ERR_OK;
}

/* target NULL: it is not known. */
static void check_head(doctor *d, const char *path, const text_model *target) {
  err e = {0};
  head_file *h;
  if (!target) {
    good(d, "draft", "a draft head; give the model that it is to draft for with -m to see whether it fits");
    return;
  }
  if (head_file_open(&h, path, &target->config, &e)) {
    bad(d, "draft", "the draft head cannot be used, and answers would come plainly: %s", e.text);
    return;
  }
  int32_t guessed = head_file_config(h)->draft_vocab, all = target->config.vocab;
  json_t *check =
      good(d, "draft", "a draft head that fits; it can guess %d of the model's %d tokens", guessed, all);
  json_object_set_new(check, "partners", json_integer(guessed));
  head_file_close(h);
}

static void check_models(doctor *d) {
  text_model target, draft;
  const flags *f = d->flags;
  bool has_target = false, has_draft = false;
  if (!f->given.model)
    good(d, "model", "not looked at: give one with -m (scripts/get_model.sh fetches the default one)");
  else if ((has_target = open_model(d, "model", f->given.model, true, &target)))
    check_template(d, &target);
  bool head = f->given.draft_model && head_lookup_is_head(f->given.draft_model);
  if (head)
    check_head(d, f->given.draft_model, has_target ? &target : NULL);
  else if (f->given.draft_model)
    has_draft = open_model(d, "draft", f->given.draft_model, false, &draft);
  if (has_target && has_draft) check_fit(d, &target, &draft);
  if (has_draft && !f->given.model)
    good(d, "fit", "not looked at: give the model that it is to draft for with -m");
  if (f->given.model) text_model_close(&target);
  if (f->given.draft_model && !head) text_model_close(&draft);
}

/* ---- sockets: a frame there and back ---- */

typedef struct exchange {
  uv_loop_t loop;
  uv_timer_t patience;
  transport *server, *client;
  msg hello;
  uint64_t sent_us, took_us;
} exchange;

static void on_overdue(uv_timer_t *timer) {
  uv_stop(timer->loop);
}

static void on_server_message(void *context, peer_id from, const msg *m) {
  exchange *x = context;
  msg welcome = x->hello;
  if (m->type != MSG_HELLO) return;
  welcome.type = MSG_WELCOME;
  welcome.to = m->u.hello.incarnation;
  transport_send(x->server, from, &welcome);
}

static void on_client_message(void *context, peer_id from, const msg *m) {
  exchange *x = context;
  (void)from;
  if (m->type != MSG_WELCOME) return;
  x->took_us = clock_us() - x->sent_us;
  uv_stop(&x->loop);
}

static msg make_hello(void) {
  msg m = {.type = MSG_HELLO};
  m.u.hello = (msg_hello){
      .version_min = WIRE_VERSION_MIN, .version_max = WIRE_VERSION_MIN, .role = WIRE_ROLE_ORCHESTRATOR};
  program_random(&m.u.hello.incarnation, sizeof m.u.hello.incarnation, NULL);
  return m;
}

static int exchange_frames(exchange *x, const char *endpoint, err *e) {
  char bound[WIRE_STRING_MAX];
  wire_id self = x->hello.u.hello.incarnation;
  transport_options server = {
      .on_message = on_server_message, .context = x, .self = self, .allow_plaintext = true};
  transport_options client = {
      .on_message = on_client_message, .context = x, .self = self, .allow_plaintext = true};
  int rc = transport_open(&x->server, &x->loop, &server, e);
  if (rc == ERR_OK) rc = transport_open(&x->client, &x->loop, &client, e);
  if (rc == ERR_OK) rc = transport_bind(x->server, endpoint, bound, sizeof bound, e);
  if (rc) return rc;
  peer_id peer = transport_connect(x->client, bound, e);
  if (!peer) return e->code;
  x->sent_us = clock_us();
  transport_send(x->client, peer, &x->hello);
  uv_timer_start(&x->patience, on_overdue, FRAME_WAIT_MS, 0);
  uv_run(&x->loop, UV_RUN_DEFAULT);
  return x->took_us ? ERR_OK
                    : err_set(e, ERR_TIMEOUT, "no frame came through %s within %d ms", bound, FRAME_WAIT_MS);
}

static void check_socket(doctor *d, const char *what, const char *endpoint) {
  exchange x = {.hello = make_hello()};
  err e = {0};
  if (uv_loop_init(&x.loop) != 0) {
    bad(d, what, "cannot make an event loop: is the limit of open files (ulimit -n) too low?");
    return;
  }
  uv_timer_init(&x.loop, &x.patience);
  if (exchange_frames(&x, endpoint, &e))
    bad(d, what, "%s: %s", endpoint, e.text);
  else
    good(d, what, "%s: a frame there and back in %" PRIu64 " us", endpoint, x.took_us);
  transport_close(x.client);
  transport_close(x.server);
  uv_close((uv_handle_t *)&x.patience, NULL);
  uv_run(&x.loop, UV_RUN_DEFAULT);
  uv_loop_close(&x.loop);
}

static void check_sockets(doctor *d) {
  char directory[] = "/tmp/tandem-doctor-XXXXXX", endpoint[64], path[64];
  if (mkdtemp(directory)) {
    snprintf(endpoint, sizeof endpoint, "ipc://%s/socket", directory);
    check_socket(d, "ipc", endpoint);
    snprintf(path, sizeof path, "%s/socket", directory);
    unlink(path);
    rmdir(directory);
  } else {
    bad(d, "ipc", "cannot make a directory in /tmp: %s", strerror(errno));
  }
  check_socket(d, "tcp", "tcp://127.0.0.1:*");
}

/* ---- keys ---- */

/* Of one role; none is no fault. */
static void check_key(doctor *d, const char *folder, wire_role role, char *names, size_t size) {
  char path[PATH_MAX + 32];
  err e = {0};
  keys *k;
  snprintf(path, sizeof path, "%s/%s.key", folder, keys_role_name(role));
  if (access(path, F_OK) != 0) return;
  if (keys_open(&k, folder, role, &e) != ERR_OK) bad(d, "keys", "%s", e.text);
  keys_close(k);
  size_t used = strlen(names);
  snprintf(names + used, size - used, "%s%s", used ? ", " : "", keys_role_name(role));
}

static void check_keys(doctor *d) {
  char folder[PATH_MAX], names[64] = "";
  const int failed = d->failed;
  if (keys_folder(d->flags->given.keys, folder, NULL) != ERR_OK) return; /* of an account without a home */
  for (int role = WIRE_ROLE_ORCHESTRATOR; role <= WIRE_ROLE_DRAFT; role++)
    check_key(d, folder, (wire_role)role, names, sizeof names);
  if (d->failed > failed) return;
  if (names[0])
    good(d, "keys", "%s: %s", folder, names);
  else
    good(d, "keys", "%s: none, which tcp needs: `tandem keygen' makes them", folder);
}

/* ---- the other programs ---- */

static void check_worker(doctor *d, const char *name) {
  char said[VERSION_MAX], path[PATH_MAX], ours[200];
  err e = {0};
  snprintf(ours, sizeof ours, "%s %s (%s)", name, TANDEM_VERSION, TANDEM_COMMIT);
  if (child_processes_find(name, path, &e) ||
      child_processes_ask(name, "--version", CHILD_PROCESSES_ASK_MS, said, sizeof said, &e)) {
    bad(d, "worker", "%s", e.text);
    return;
  }
  char *second = said + strcspn(said, "\n"); /* of a target: its numerics */
  if (*second) *second++ = 0;
  second[strcspn(second, "\n")] = 0;
  json_t *check =
      strncmp(said, ours, strlen(ours)) == 0
          ? good(d, "worker", "%s: %s%s%s", path, said, *second ? ", " : "", second)
          : bad(d, "worker", "%s is '%s', but this is %s (%s): build or install all three together", path,
                said, TANDEM_VERSION, TANDEM_COMMIT);
  json_object_set_new(check, "program", json_string(name));
}

/* The lines of `tandem-target --self-test', "NAME STATE: WHAT", as "cpu:avx512 chosen: ...; cpu:avx2
 * available: ...; ..." and as {NAME: STATE: WHAT}. */
static void check_devices(doctor *d) {
  char said[VERSION_MAX], text[VERSION_MAX] = "";
  err e = {0};
  bool listed = child_processes_ask("tandem-target", "--self-test", CHILD_PROCESSES_TEST_MS, said,
                                    sizeof said, &e) == ERR_OK;
  if (e.code == ERR_GONE) return; /* check_worker has reported that it is missing */
  json_t *devices = json_object(), *check;
  const char *chosen = NULL;
  char *rest = said;
  for (char *line; (line = strtok_r(NULL, "\n", &rest));) {
    char *state = line + strcspn(line, " ");
    size_t used = strlen(text);
    snprintf(text + used, sizeof text - used, "%s%s", used ? "; " : "", line);
    if (*state) *state++ = 0;
    json_object_set_new(devices, line, json_string(state));
    if (strncmp(state, "chosen", strlen("chosen")) == 0) chosen = line;
  }
  if (listed)
    check = good(d, "device", "%s", text);
  else
    check = bad(d, "device", "%s", *text ? text : e.text);
  json_object_set_new(check, "chosen", chosen ? json_string(chosen) : json_null());
  json_object_set_new(check, "devices", devices);
}

/* --json prints one object, at the end. */
static int print_object(doctor *d) {
  char *line = result_json_line(json_pack("{s:b, s:s, s:s, s:O}", "ok", d->failed == 0, "version",
                                          TANDEM_VERSION, "commit", TANDEM_COMMIT, "checks", d->checks));
  if (!line) return command_error(STATUS_FAILED, "out of memory");
  fputs(line, stdout);
  free(line);
  return STATUS_OK;
}

int command_doctor(int argc, char **argv) {
  flags f;
  flags_parse(&f, COMMAND_DOCTOR, argc, argv);
  command_clean_stdout();
  doctor d = {.flags = &f, .checks = json_array()};
  good(&d, "tandem", "%s (%s)", TANDEM_VERSION, TANDEM_COMMIT);
  check_cpu(&d);
  check_memory(&d);
  check_worker(&d, "tandem-target");
  check_worker(&d, "tandem-draft");
  check_devices(&d);
  check_sockets(&d);
  check_keys(&d);
  check_models(&d);
  int code = f.given.json ? print_object(&d) : STATUS_OK;
  json_decref(d.checks);
  if (code != STATUS_OK) return code;
  if (fflush(stdout) != 0) return STATUS_IO;
  if (d.failed == 0) return STATUS_OK;
  return command_error(STATUS_FAILED, "%d of these %s BAD: see above", d.failed,
                       d.failed == 1 ? "is" : "are");
}
