/* ledger.pml - one session, its epochs and its ledger: whatever is lost, repeated, late, killed, altered or
 * forged, no wrong token is shown, none is shown that is not kept, and nobody uses an epoch of somebody else.
 *
 * The network is the set of all frames that were ever sent. Any of them may arrive at any time, any number of
 * times, or never: this is loss, repetition, reordering and lateness in one. README.md says what is left out.
 *
 * Promela, for Spin; check.py runs it. */

/* --- size --- */

#ifndef TOKENS
#define TOKENS 2 /* of output, at most 4. A prompt has no part in anything here. */
#endif
#ifndef RUNS
#define RUNS 2 /* starts of orchestrators, over two processes */
#endif
#ifndef EPOCHS
#define EPOCHS 5 /* 3 to 8 */
#endif
#ifndef RESTARTS
#define RESTARTS 1 /* of targets, which lose all that they hold */
#endif
#ifndef ALTERATIONS
#define ALTERATIONS 1 /* a target's tokens change in its memory */
#endif
#ifndef CREDIT
#define CREDIT 1 /* 256 in our programs */
#endif
#ifndef AHEAD
#define AHEAD 1 /* epochs are recorded so far ahead: 16 in our programs */
#endif
#ifndef PARTS
#define PARTS 0 /* 1: a prompt may also come in two halves, PART and OPEN */
#endif
#ifndef REOPENS
#define REOPENS 0 /* 1: an OPEN may be repeated with the tokens that have come since */
#endif
#ifndef RELEASES
#define RELEASES 0 /* a person releases the session of a process that lives all the same */
#endif
#ifndef POWER_CUTS
#define POWER_CUTS 0 /* 1: the host of the orchestrators loses what the ledger has not synced */
#endif
#ifndef SYNC_ALL
#define SYNC_ALL 0 /* 1: the ledger syncs each transaction, as --ledger-mode durable does */
#endif

/* --- rules: check.py finds them here, and removes one after the other --- */

c_decl {
  \#include <stdlib.h>
  static int missing; /* the rule that the environment removes */
  __attribute__((constructor)) static void read_missing(void) {
    if (getenv("MISSING")) missing = atoi(getenv("MISSING"));
  }
}
#define RULE(number) c_expr { missing != number }

#define EPOCH_RECORDED RULE(1) /* an epoch is in the ledger before a frame bears it */
#define EPOCH_ABOVE RULE(2) /* who takes a session over begins above every epoch that the ledger has */
#define LOGGED_FIRST RULE(3) /* only what is in the ledger is shown */
#define ACK_LOGGED RULE(4) /* only what is in the ledger is acknowledged */
#define OPEN_IS_NO_ACK RULE(5) /* what OPEN brings is not acknowledged by it: it may not be in the ledger */
#define CREDIT_KEPT RULE(6) /* a target does not run further ahead of what was acknowledged than its credit */
#define OWNER_DEAD RULE(7) /* a session is taken over only from a process that is dead for certain */
#define CLAIM_WHOLE RULE(8) /* looking for the owner and becoming it are one transaction */
#define STREAM_HASH RULE(9) /* TOKENS count only if the hash over all of the prefix is the receiver's own */
#define FRAME_EPOCH RULE(10) /* the orchestrator drops frames of another epoch */
#define DONE_LENGTH RULE(11) /* DONE ends an answer only if all of its tokens are there */
#define DONE_CANCELLED RULE(12) /* DONE(cancelled) does not end an answer that nobody has cancelled */
#define OPEN_EPOCH RULE(13) /* a target refuses an OPEN of a lower epoch than it holds */
#define OPEN_AGAIN RULE(14) /* at a target, an OPEN of the epoch that it holds changes nothing */
#define OPEN_HASH RULE(15) /* a target builds on its own tokens only if their hash is that of OPEN */
#define END_EPOCH RULE(16) /* a target refuses an END of a lower epoch than it holds */
#define RECEIVER RULE(17) /* a frame for another incarnation is dropped */
#define TICKET RULE(18) /* a draft attaches only with the ticket of this epoch */
#define ACCEPTANCE RULE(19) /* a node becomes a token only if the target has chosen the same one */

#define OWNER_CHECK RULE(20) /* a process writes only sessions that it owns */
#define PART_WAITS RULE(23) /* nothing is decoded before OPEN has brought the rest of the prompt */
#define PART_AGAIN RULE(24) /* at a target, a PART of the epoch that OPEN has opened changes nothing */
#define EPOCHS_SYNCED RULE(25) /* a transaction that raises the epochs of a session in progress is synced */

/* Second lines of defence: without one of these alone nothing breaks, as check.py shows too. */

#define FRAME_PEER RULE(21) /* second: an orchestrator hears only the target of this epoch's OPEN */
#define RUN_ADDRESSED RULE(22) /* second: an orchestrator drops frames for an earlier run */

/* --- tokens --- */

/* A prefix of the output is a length and its content, two bits a token. What is right depends on the run: who
 * resumes a session may ask for another temperature, and targets of other numerics decode other tokens. */
#define RIGHT(run) (1 + (run) % 2)
#define WRONG      3
#define PREFIX(content, length)       ((content) & ((1 << (2 * (length))) - 1))
#define PUT(content, position, token) ((content) | ((token) << (2 * (position))))
#define BETWEEN(content, from, to)    (PREFIX(content, to) >> (2 * (from)))
#define ALL(token)                    (85 * (token))
#define IS_ALTERED(content)           (((content) & ((content) >> 1) & 85) != 0) /* there is a WRONG in it */

/* --- the ledger --- */

bool begun, ended, complete; /* it has the session, with its end, and with all of its tokens */
byte owner;                  /* the run that serves the session, 0: none does */
byte bound;                  /* the highest epoch that may have been sent */
byte kept_length, kept;      /* the tokens */

byte releases;               /* so far */

#if POWER_CUTS
byte synced_bound, synced_length; /* what a power cut leaves of it */
bool synced_end;
#endif

byte shown_length; /* so many tokens have been shown, by whichever run */

/* --- frames that were sent, by their epoch --- */

#define SIZE (EPOCHS + 1)
byte user[SIZE];        /* the run that has sent one, 0: none has. No frame tells it. */
byte open_at[SIZE];     /* OPEN: for which incarnation of which target, 0: there is none; */
bool open_part[SIZE];   /* PART was sent there too, with half of the prompt: OPEN has the other half; */
byte open_length[SIZE]; /* how many tokens the target has to hold afterwards; */
#if REOPENS
byte again_length[SIZE]; /* and after its repetition that brings most, 0: there is none; */
#endif
bool open_delta[SIZE];  /* it should hold them already: they are not in the frame; */
byte chain[SIZE];       /* these are they, and what follows them where nothing is altered */
byte told[SIZE];        /* TOKENS: the longest prefix of `chain` that was sent; */
byte bad_length[SIZE], bad[SIZE]; /* and of an altered prefix */
byte acked[SIZE];                 /* ACK: the longest prefix of `chain` that was sent */
byte end_at[2 * SIZE];            /* END, for each target: for which of its incarnations, 0: there is none */
byte done[2 * SIZE], done_length[2 * SIZE]; /* DONE of each target */

#define COMPLETE  1
#define CANCELLED 2

/* --- who is there --- */

byte runs;        /* so far */
byte run_of[2];   /* of each orchestrator, 0: it is not running; */
byte epoch_of[2]; /* the epoch that it is in; */
bool claiming[2]; /* it has seen that nobody serves the session */
byte incarnation[2]; /* of each target */
byte restarts, alterations; /* so far */

#define ADDRESS(target)    (1 + (target) + 2 * incarnation[target])
#define TARGET_OF(address) (((address) - 1) % 2)
#define TICKETED(epoch)    ((epoch) % 2) /* a draft is asked in every other epoch, and keeps its tickets */
#define LIVES(r)           ((r) != 0 && (run_of[0] == (r) || run_of[1] == (r)))

/* Somebody would listen to frames of this epoch. Others are not remembered, which saves most states. */
#define IN_EPOCH(o, e) (run_of[o] == user[e] && epoch_of[o] == (e))
#define HEARD(e)       (!FRAME_EPOCH || user[e] != 0 && (IN_EPOCH(0, e) || IN_EPOCH(1, e)))

#define me    run_of[_pid]
#define epoch epoch_of[_pid]

/* Of two orchestrators that are down, the first one starts: they are alike. */
#define MY_TURN (me == 0 && (_pid == 0 || run_of[0] != 0))

/* Nobody uses an epoch that another run has used. */
inline use(e) {
  assert(user[e] == 0 || user[e] == me);
  user[e] = me
}

#define EACH_EPOCH_3(X) X(1) X(2) X(3)
#if EPOCHS == 3
#define EACH_EPOCH(X) EACH_EPOCH_3(X)
#elif EPOCHS == 4
#define EACH_EPOCH(X) EACH_EPOCH_3(X) X(4)
#elif EPOCHS == 5
#define EACH_EPOCH(X) EACH_EPOCH_3(X) X(4) X(5)
#elif EPOCHS == 6
#define EACH_EPOCH(X) EACH_EPOCH_3(X) X(4) X(5) X(6)
#elif EPOCHS == 7
#define EACH_EPOCH(X) EACH_EPOCH_3(X) X(4) X(5) X(6) X(7)
#else
#define EACH_EPOCH(X) EACH_EPOCH_3(X) X(4) X(5) X(6) X(7) X(8)
#endif

/* --- the orchestrator --- */

inline leave_epoch() {
  if
  :: FRAME_EPOCH ->
     told[epoch] = 0; bad_length[epoch] = 0; bad[epoch] = 0;
     done[2 * epoch] = 0; done[2 * epoch + 1] = 0; done_length[2 * epoch] = 0; done_length[2 * epoch + 1] = 0
  :: else
  fi
}

inline next_epoch() {
  leave_epoch();
  epoch++
}

inline forget_all() {
  leave_epoch();
  run_of[_pid] = 0; claiming[_pid] = 0;
  live = 0; closing = 0; all_there = 0; chosen = 0;
  epoch = 0; length = 0; content = 0; written = 0; recorded = 0
}

inline start() {
  runs++; run_of[_pid] = runs; live = 1
}

/* A process goes on with what the ledger has. Until it has written its epoch there, it sends nothing. */
inline resume() {
  owner = me; claiming[_pid] = 0;
  epoch = bound + (EPOCH_ABOVE -> 1 : 0); recorded = 0;
  length = kept_length; content = kept; written = kept_length
}

inline send_ack() {
  if
  :: chosen != 0 && ACK_LOGGED -> acked[epoch] = written
  :: chosen != 0 && !ACK_LOGGED -> acked[epoch] = length
  :: else
  fi
}

#if POWER_CUTS
#define SYNCED (SYNC_ALL || (EPOCHS_SYNCED && begun && !closing && epoch + AHEAD > bound))
inline sync() {
  synced_bound = bound; synced_length = kept_length; synced_end = complete
}

/* A session whose beginning is lost cannot be resumed. */
inline cut_power() {
  forget_all();
  bound = synced_bound; kept_length = synced_length; kept = PREFIX(kept, kept_length); complete = synced_end;
  runs = (bound > 0 -> runs : RUNS)
}
#else
#define SYNCED false
#define sync() skip
#endif

/* One transaction takes all that is new. When it happens is up to the disk. */
inline commit() {
  syncs = SYNCED;
  begun = 1; owner = me;
  kept_length = length; kept = content; written = length;
  bound = epoch + AHEAD; recorded = bound;
  if
  :: closing -> ended = 1; complete = all_there; owner = 0; closing = 0
  :: else -> send_ack()
  fi;
  if
  :: syncs -> sync()
  :: else
  fi;
  syncs = 0
}

inline send_open(number, part, delta) {
  use(epoch);
  assert(open_at[epoch] == 0);
  chosen = 1 + number;
  open_at[epoch] = ADDRESS(number);
  open_length[epoch] = length;
  send_ack(); /* it follows OPENED */
  open_part[epoch] = part; open_delta[epoch] = delta;
  chain[epoch] = PREFIX(PREFIX(content, open_length[epoch]) |
                        ((ALL(RIGHT(me)) >> (2 * open_length[epoch])) << (2 * open_length[epoch])), TOKENS)
}

inline send_end(number) {
  use(epoch);
  end_at[2 * epoch + number] = 1 + incarnation[number]
}

#define MAY_SEND(e) ((e) <= recorded || !EPOCH_RECORDED)
#define FROM_NOW(e) (((e) == epoch || !FRAME_EPOCH) && (user[e] == me || !RUN_ADDRESSED))

inline take(e, more, more_length) {
  assert(e == epoch); /* no token of an epoch that has passed */
  assert(BETWEEN(more, length, more_length) == BETWEEN(ALL(RIGHT(me)), length, more_length));
  content = content | (BETWEEN(more, length, more_length) << (2 * length));
  length = more_length;
  if
  :: !ACK_LOGGED -> send_ack()
  :: else
  fi
}

#define ON_TOKENS(e) \
  :: d_step { live && chosen != 0 && FROM_NOW(e) && told[e] > length && \
              (PREFIX(chain[e], length) == content || !STREAM_HASH) -> take(e, chain[e], told[e]) } \
  :: d_step { live && chosen != 0 && FROM_NOW(e) && bad_length[e] > length && \
              (PREFIX(bad[e], length) == content || !STREAM_HASH) -> take(e, bad[e], bad_length[e]) }

/* An answer that nobody has cancelled ends with all of its tokens. */
inline finish(how) {
  assert(how == COMPLETE && length == TOKENS);
  live = 0; closing = 1; all_there = 1; chosen = 0;
  leave_epoch()
}

#define ON_DONE_OF(e, number) \
  :: d_step { live && chosen != 0 && done[2 * (e) + number] != 0 && FROM_NOW(e) && \
              (chosen == 1 + number || !FRAME_PEER) && \
              (done[2 * (e) + number] == COMPLETE || !DONE_CANCELLED) && \
              (done_length[2 * (e) + number] == length || !DONE_LENGTH) -> finish(done[2 * (e) + number]) }
#define ON_DONE(e) ON_DONE_OF(e, 0) ON_DONE_OF(e, 1)

active [2] proctype orchestrator() {
  bool live, closing, all_there; /* it serves the session; its end is not written yet; it has all tokens */
  byte chosen;                   /* 0: no target, or 1 + its number */
  byte length, content;          /* what it holds, */
  byte written, recorded;        /* and what of that, and up to which epoch, is in the ledger for certain */
  bool syncs;
end:
  do
  /* It begins the session, or resumes it. */
  :: d_step { MY_TURN && runs < RUNS && !begun && run_of[1 - _pid] == 0 -> start(); epoch = 1 }
  :: d_step { CLAIM_WHOLE && MY_TURN && runs < RUNS && begun && !complete && bound < EPOCHS &&
              (!LIVES(owner) || !OWNER_DEAD) -> start(); resume() }
  :: d_step { !CLAIM_WHOLE && MY_TURN && runs < RUNS && begun && !complete && bound < EPOCHS &&
              (!LIVES(owner) || !OWNER_DEAD) -> start(); live = 0; claiming[_pid] = 1 }
  :: d_step { claiming[_pid] && bound < EPOCHS -> live = 1; resume() }

  /* The ledger. */
  :: d_step { (live || closing) && (owner == me || !begun || !OWNER_CHECK) &&
              (!begun || closing || length > written || epoch + AHEAD > recorded) -> commit() }
  :: d_step { (live || closing) && begun && owner != me && OWNER_CHECK -> live = 0; closing = 0; chosen = 0 }
  :: d_step { shown_length < (LOGGED_FIRST -> written : length) ->
              assert(closing || !live || owner == me || releases > 0); /* never two */
              shown_length = (LOGGED_FIRST -> written : length);
              assert(shown_length <= kept_length);
              assert(PREFIX(kept, shown_length) == PREFIX(content, shown_length)) }

  /* A target. */
  /* (0 first: they are alike) */
  :: d_step { live && chosen == 0 && MAY_SEND(epoch) -> send_open(0, false, false) }
  :: d_step { live && chosen == 0 && MAY_SEND(epoch) && epoch > 1 -> send_open(1, false, false) }
#if PARTS
  :: d_step { live && chosen == 0 && MAY_SEND(epoch) -> send_open(0, true, false) }
  :: d_step { live && chosen == 0 && MAY_SEND(epoch) && epoch > 1 -> send_open(1, true, false) }
#endif
  :: d_step { live && chosen == 0 && MAY_SEND(epoch) && written > 0 -> send_open(0, false, true) }
  :: d_step { live && chosen == 0 && MAY_SEND(epoch) && written > 0 -> send_open(1, false, true) }
  EACH_EPOCH(ON_TOKENS)
  EACH_EPOCH(ON_DONE)

#if REOPENS
  :: d_step { live && chosen != 0 && length > open_length[epoch] && length > again_length[epoch] ->
              again_length[epoch] = length }
#endif

  /* It gives the target up: silent, refusing, out of step; or hung, and then it is told. */
  :: d_step { live && chosen != 0 && epoch < EPOCHS -> next_epoch(); chosen = 0 }
  :: d_step { live && chosen != 0 && epoch < EPOCHS && MAY_SEND(epoch + 1) ->
              next_epoch(); send_end(chosen - 1); chosen = 0 }

  /* Its client cancels, or it dies. */
  :: d_step { live && chosen != 0 && epoch < EPOCHS && MAY_SEND(epoch + 1) ->
              next_epoch(); send_end(chosen - 1); chosen = 0; live = 0; closing = 1 }
  :: d_step { me != 0 -> forget_all() }
#if POWER_CUTS
  /* The system may sync whenever it likes. When power fails, both processes have died. */
  :: d_step { me != 0 && (synced_bound < bound || synced_length < kept_length || synced_end != complete) ->
              sync() }
  :: d_step { me != 0 && run_of[1 - _pid] == 0 && bound > 0 -> cut_power() }
#endif
#if RELEASES
  :: d_step { me != 0 && owner == me && releases < RELEASES -> owner = 0; releases++ }
#endif
  od
}

/* --- a target --- */

#undef epoch
#define self (_pid - 2)

inline drop() {
  held = 0; opening = 0; out_of_step = 0; finished = 0; epoch = 0; length = 0; content = 0; acknowledged = 0
}

inline tell() {
  if
  :: !HEARD(epoch)
  :: HEARD(epoch) && IS_ALTERED(content) -> bad_length[epoch] = length; bad[epoch] = content
  :: HEARD(epoch) && !IS_ALTERED(content) ->
     if
     :: length > told[epoch] -> told[epoch] = length
     :: else
     fi
  fi;
  if
  :: length == TOKENS && HEARD(epoch) ->
     finished = 1; done[2 * epoch + self] = COMPLETE; done_length[2 * epoch + self] = length
  :: length == TOKENS && !HEARD(epoch) -> finished = 1
  :: else
  fi
}

/* The next token is right only after right ones. */
#define CHOICE (IS_ALTERED(content) -> WRONG : RIGHT(user[epoch]))

inline append(token) {
  assert(!opening); /* no token follows a part of the prompt */
  content = PUT(content, length, token); length++;
  assert(length - kept_length <= CREDIT) /* so much, and no more, is at risk */
}

#define FOR_ME(e) \
  (open_at[e] == ADDRESS(self) || (!RECEIVER && open_at[e] != 0 && TARGET_OF(open_at[e]) == self))
#define BASE_FITS(e) \
  (!open_delta[e] && (!open_part[e] || held) || (held && length >= open_length[e] && \
                      (PREFIX(content, open_length[e]) == PREFIX(chain[e], open_length[e]) || !OPEN_HASH)))

inline part(e) {
  assert(!held || e >= epoch);
  assert(!held || e > epoch || opening || out_of_step);
  held = 1; opening = 1; out_of_step = 0; finished = 0; epoch = e; length = 0; content = 0; acknowledged = 0
}

inline open(e, upto) {
  assert(open_at[e] == ADDRESS(self));           /* a new program never goes on with an old one's epoch */
  assert(!held || e >= epoch);                     /* an epoch is never followed by a lower one, */
  assert(!held || e > epoch || length <= upto || out_of_step); /* and in one epoch tokens only grow */
  content = (open_delta[e] -> PREFIX(content, open_length[e]) : PREFIX(chain[e], open_length[e])) |
            (BETWEEN(chain[e], open_length[e], upto) << (2 * open_length[e]));
  assert(content == PREFIX(chain[e], upto)); /* the target holds what the ledger has */
  held = 1; opening = 0; out_of_step = 0; finished = 0;
  epoch = e; length = upto; acknowledged = (OPEN_IS_NO_ACK -> 0 : length);
  tell()
}

#define MAY_OPEN(e) \
  (FOR_ME(e) && BASE_FITS(e) && (!held || (e) > epoch || ((e) < epoch && !OPEN_EPOCH) || \
                                 ((e) == epoch && (opening || out_of_step || !OPEN_AGAIN))))

#define ON_OPEN(e) :: d_step { open_at[e] != 0 && MAY_OPEN(e) -> open(e, open_length[e]) }
#define ON_REPEATED(e) :: d_step { again_length[e] != 0 && MAY_OPEN(e) -> open(e, again_length[e]) }

#define ON_PART(e) \
  :: d_step { open_part[e] && FOR_ME(e) && (!held || (e) > epoch || ((e) < epoch && !OPEN_EPOCH) || \
              ((e) == epoch && !opening && !PART_AGAIN)) -> part(e) }

#define ON_END(e) \
  :: d_step { held && end_at[2 * (e) + self] == 1 + incarnation[self] && ((e) >= epoch || !END_EPOCH) -> \
              assert((e) >= epoch); \
              if \
              :: !finished && done[2 * (e) + self] == 0 && HEARD(e) -> \
                 done[2 * (e) + self] = CANCELLED; done_length[2 * (e) + self] = length \
              :: else \
              fi; \
              drop() }

#define ACK_FITS \
  (acked[epoch] <= length && PREFIX(content, acked[epoch]) == PREFIX(chain[epoch], acked[epoch]))

#define MAY_STEP \
  (held && !finished && !out_of_step && (!opening || !PART_WAITS) && \
   (length - acknowledged < CREDIT || !CREDIT_KEPT))

active [2] proctype target() {
  bool held, finished;
  bool opening, out_of_step; /* it has PART alone; it has heard an ACK of something else than it has */
  byte epoch, length, content, acknowledged;
end:
  do
  EACH_EPOCH(ON_OPEN)
#if REOPENS
  EACH_EPOCH(ON_REPEATED)
#endif
#if PARTS
  EACH_EPOCH(ON_PART)
#endif
  EACH_EPOCH(ON_END)
  :: d_step { held && acked[epoch] > acknowledged && ACK_FITS -> acknowledged = acked[epoch] }
  :: d_step { held && acked[epoch] > acknowledged && !ACK_FITS && !opening && !out_of_step ->
              out_of_step = 1 }

  /* A step, with or without a node of a draft, which may be any token. */
  :: d_step { MAY_STEP -> append(CHOICE); tell() }
  :: d_step { MAY_STEP && (TICKETED(epoch) || !TICKET) ->
              assert(TICKETED(epoch));
              if
              :: ACCEPTANCE -> append(CHOICE) /* a node that is another token is not taken */
              :: else -> append(WRONG)
              fi;
              tell() }

  /* The lease, a restart, an altered token. */
  :: d_step { held -> drop() }
  :: d_step { held && restarts < RESTARTS -> restarts++; incarnation[self]++; drop() }
  :: d_step { held && !finished && acknowledged > 0 && alterations < ALTERATIONS ->
              alterations++; content = PUT(content, acknowledged - 1, WRONG) }
  od
}
