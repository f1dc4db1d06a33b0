/* world.h - one seed of the simulation: its programs, clients, disk and faults. The files beside it each know
 * one subject:
 *
 *   run        one seed from its beginning to its end, event by event
 *   net        frames, connections, clocks of programs
 *   toy        a model, an engine and drafters that are certain of the right answer
 *   storage    the orchestrator's disk: what survives its death, and what another orchestrator does there
 *   memory     what the machines get from the allocator
 *   programs   starts, stops and feeds the workers and the orchestrator
 *   clients    requests, and what a client does when its orchestrator has been restarted
 *   faults     which faults a seed has, and when they strike
 *   byzantine  drafts and targets that say anything at all
 *   oracles    what must hold, at every step and at the end
 *   rest       what both sides know when nothing has been lost for a while
 *   frames     who may know what, and who may say what
 *   waits      how long an answer may stand still
 *   limits     which limits of the machines were reached
 *   report     the figures of a run */
#pragma once

#include "tests/sim/memory.h"
#include "tests/sim/net.h"
#include "tests/sim/storage.h"
#include "tests/sim/toy.h"

#include "draft_worker/worker.h"
#include "orchestrator/sessions/sessions.h"
#include "target_worker/worker.h"

enum { ORCH, TARGET_A, TARGET_B, DRAFT_A, DRAFT_B, NODES, STRANGER = NODES };
#define TICKETS     16 /* of one session that are remembered */
#define CLIENTS_MAX 4
#define TURNS_MAX   80       /* tokens of a conversation that goes on */
#define HANG_US     11500000 /* of an engine: longer than a session waits for a sign of life */

/* What the world has planned: net_alarm's numbers. */
typedef enum alarm_kind {
  ALARM_RESULT, /* of an engine; detail: the program's life */
  ALARM_START,  /* a client */
  ALARM_CANCEL, /* a client */
  ALARM_FAULT,  /* the next one is drawn: now, or at the next frame of some type */
  ALARM_STRIKE, /* the one that was drawn strikes; index: its kind */
  ALARM_REVIVE, /* a program */
  ALARM_RESUME, /* a program that was stopped (SIGSTOP) */
  ALARM_HEAL,   /* a partition, or queues */
  ALARM_REST,   /* nothing is lost from now on, until */
  ALARM_WAKE,   /* both sides have been compared */
  ALARM_FORGE,  /* somebody says anything at all */
  ALARM_LEAVE,  /* a program ends, for its device is lost */
  ALARM_DISK,   /* a transaction ends */
  ALARM_ROOM,   /* the disk is full no more */
  ALARM_FREE,   /* another orchestrator lets a client's session go */
  ALARM_KINDS
} alarm_kind;

#define ALARM(kind, index, detail) ((int)(kind) << 20 | (int)(index) << 12 | (int)((detail)&0xFFF))

typedef enum fault_kind {
  FAULT_KILL_TARGET,
  FAULT_KILL_DRAFT,
  FAULT_KILL_ORCHESTRATOR,
  FAULT_PAUSE_TARGET,
  FAULT_PAUSE_DRAFT,
  FAULT_PAUSE_ORCHESTRATOR,
  FAULT_DRAIN_TARGET,
  FAULT_DRAIN_DRAFT,
  FAULT_ENGINE_HANGS,
  FAULT_ENGINE_FAILS,
  FAULT_ENGINE_MEMORY,
  FAULT_DEVICE_OF_TARGET,
  FAULT_DEVICE_OF_DRAFT,
  FAULT_CACHE_ROLLED_BACK,
  FAULT_PREFIX_ALTERED,
  FAULT_LINK_ONE_WAY,
  FAULT_LINK_BOTH_WAYS,
  FAULT_RECONNECT,
  FAULT_QUEUES_FULL,
  FAULT_CLOCK_JUMPS,
  FAULT_CLOCK_DRIFTS,
  FAULT_DISK_STALLS,
  FAULT_DISK_FULL,
  FAULT_SESSION_TAKEN, /* by another orchestrator, which has workers of its own and the same disk */
  FAULT_NO_MEMORY,
  FAULT_KINDS
} fault_kind;

/* The small limits of the machines (common/base/limit.h), and how often each was reached. */
typedef enum limit_kind {
  LIMIT_SESSIONS,       /* of an orchestrator, */
  LIMIT_PLACES,         /* of a target, */
  LIMIT_DRAFT_SESSIONS, /* and of a draft */
  LIMIT_PROGRAMS,
  LIMIT_LINKS,
  LIMIT_DRAFTS,
  LIMIT_QUOTA,
  LIMIT_TREE,
  LIMIT_IDS,
  LIMIT_BURST,
  LIMIT_STEPS,
  LIMIT_PREFILLS,
  LIMIT_JOBS,
  LIMIT_QUERIES,
  LIMIT_KINDS
} limit_kind;

typedef struct totals { /* counters, all of them uint64_t, except that of the last two the greatest counts */
  net_totals net;
  uint64_t seeds, tokens, accepted, marked, forwards, rests, rests_compared, live_nodes, repairs, cancelled,
      stopped, lockstep, epochs, shared, evicted, said_by_draft, said_by_target, devices_lost, device_errors,
      io_errors, engine_errors, features, features_wrong, features_kept, repeated, resumed, begun_again,
      ended_on_disk, transactions, transactions_lost, taken_over, credit_used_up, rests_of_several,
      said_by_stranger, refused, starts_refused;
  uint64_t faults[FAULT_KINDS], limits[LIMIT_KINDS];
  uint64_t longest_stall_us, longest_wait_us; /* the latter without what faults take */
} totals;

typedef struct tickets { /* the latest ones */
  wire_id of[TICKETS];
  int last;
} tickets;

typedef struct client {
  bool started, finished, cancelled;
  bool lost;      /* another orchestrator has taken its session over */
  bool displaced; /* a target had no place for it, or none any more */
  bool released;  /* its orchestrator knows nothing of its session any more */
  uint64_t id;
  int32_t prompt[TURNS_MAX], prompt_length;
  sessions_request request;
  int32_t stops[1];
  int32_t stop_count_seen;                  /* threes seen by admit */
  int32_t length;                           /* tokens that its orchestrator has had, */
  sessions_state state;                     /* what it does, */
  uint32_t states;                          /* what it has done since it had its last token, a bit each, */
  uint64_t moved_us;                        /* and since when it has got no further */
  int32_t shown;                            /* tokens that it has seen */
  int32_t plain[TOY_CONTEXT], plain_length; /* what plain decode gives */
  wire_finish plain_finish;
  tickets drawn;      /* by its orchestrator, */
  tickets given[2];   /* those of them that it has given to each draft, */
  tickets offered[2]; /* and that each draft has shown to targets */
  uint32_t failed_at; /* 1 << target: a plain step or a part of its prompt has failed there */
  int lies;           /* about it, by its own target */
  int32_t told;       /* the longest C that its orchestrator has acknowledged, the prompt by OPEN */
  uint32_t epoch_sent, epoch_passed; /* the highest that went out, and that went out before a restart */
} client;

typedef struct worker_node {
  target *target; /* or */
  draft *draft;
  toy_engine engine;
  engine_results results;
  drafter drafter;   /* of the draft */
  toy_model model;   /* of a draft that computes batches */
  toy_reader reader; /* of a draft that reads features */
  draft_results draft_results;
  wire_id incarnation;
  bool busy;
  bool hangs;    /* its next batch comes back after HANG_US only */
  bool fails;    /* its next batch fails */
  bool starves;  /* in its next batch one session finds no memory */
  bool lost;     /* so is its device from the next batch on */
  bool leaves;   /* so its program ends soon */
  bool draining; /* SIGTERM came, when it had */
  memory_guard guard;
  uint64_t drained_ids[TOY_SLOTS];
  uint32_t life; /* of the results in flight */
  uint64_t epoch_id[TOY_SLOTS];
  uint32_t epoch_seen[TOY_SLOTS];
  int32_t opened[TOY_SLOTS]; /* C that the OPEN of this epoch brought */
} worker_node;

typedef struct world {
  uint64_t seed;
  net *net;
  totals *totals;
  storage disk;
  ledger ledger;              /* of the orchestrator that lives */
  sessions_machine *sessions; /* NULL: it is dead */
  worker_node nodes[NODES];
  client clients[CLIENTS_MAX];
  int client_count;
  bool faulty, resting, is_virtual, targets_return, is_long;
  bool forges; /* prefixes, streams or frames: what a draft reads may be wrong */
  bool byzantine_drafts, byzantine_targets, stranger;
  bool planned;        /* which allocation fails was said */
  bool gentle;         /* no fault is one of targets */
  bool several;        /* both drafts are told of each session */
  bool says;           /* what goes out is not a program's own word */
  uint32_t swarm;      /* 1 << fault_kind: those that this seed has, */
  uint32_t struck;     /* and that have struck */
  int missed;          /* strikes that found nothing to hit */
  int faults_left;     /* that will strike yet */
  int32_t armed;       /* a fault_kind that waits for a frame of */
  msg_type armed_type; /* this type; -1: none does */
  wire_id orchestrator, stranger_id;
  uint64_t incarnations;
  uint64_t calm_us;                /* from then on no fault that has struck holds anything up */
  uint64_t forge_us, forge_tokens; /* the time to the next forged frame, at most; TOKENS at the last one */
  uint64_t refused_before;         /* memory_refused at the beginning */
  const char *failure;
} world;

static inline void world_fail(world *w, const char *why) {
  if (!w->failure) w->failure = why;
}

static inline uint64_t world_pick(world *w, uint64_t n) {
  return net_random(w->net) % n;
}

static inline void world_alarm(world *w, uint64_t in_us, alarm_kind kind, int index, uint32_t detail) {
  net_alarm(w->net, net_now(w->net) + in_us, ALARM(kind, index, detail));
}

/* A frame in a program's name: false where it has no connection. */
bool world_say(world *w, int from, int to, const msg *m);
wire_id world_incarnation(world *w);
client *world_client(world *w, uint64_t id); /* or NULL */
