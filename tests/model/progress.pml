/* progress.pml - every answer that nobody cancels ends with all of its tokens, if losses, deaths and the like
 * happen finitely often.
 *
 * One orchestrator serves one session, with two targets. Frames arrive in order or are lost. Time passes when
 * nothing else is left to be done: then every timer that repeats something fires, and the longer ones count.
 * That it passes earlier, so that timers fire too soon, is one of the faults. README.md says what is left out.
 *
 * Promela, for Spin; check.py runs it. */

/* --- size --- */

#ifndef FAULTS
#define FAULTS 2 /* of all kinds together */
#endif
#ifndef TOKENS
#define TOKENS 2
#endif
#ifndef EPOCHS
#define EPOCHS 12 /* a session that needs more of them, for so few faults, goes round in circles */
#endif
#define CREDIT  1
#define QUEUE   3 /* frames under way each way; others are lost */
#ifndef SILENCE
#define SILENCE 2 /* times that the repeating timers fire, here and below: until a silent session moves, */
#endif
#define LEASE   2 /* until a target frees a session that nobody acknowledges, */
#define AVOIDED 4 /* for which a target that fell silent is the last choice, */
#define PREFILL 4 /* and that a prompt takes: longer than a silence */

/* --- rules: check.py finds them here, and removes one after the other --- */

c_decl {
  \#include <stdlib.h>
  static int missing; /* the rule that the environment removes */
  __attribute__((constructor)) static void read_missing(void) {
    if (getenv("MISSING")) missing = atoi(getenv("MISSING"));
  }
}
#define RULE(number) c_expr { missing != number }

#define OPEN_REPEATED RULE(1) /* OPEN and PART are repeated until they are answered */
#define PART_FOLLOWED RULE(2) /* when a PART is opened, the rest of the prompt is sent */
#define OPENING_OPENS RULE(3) /* where only a PART is held, an OPEN of the same epoch is no repetition */
#define CREDIT_BACK RULE(4) /* what is in the ledger is acknowledged, which gives credit back */
#define ACK_REPEATED RULE(5) /* ACK is repeated when nothing is new: it renews leases, finds what is lost */
#define TOKENS_REPEATED RULE(6) /* tokens that are not acknowledged are told again */
#define DONE_REPEATED RULE(7) /* DONE is repeated until END */
#define LEDGER_AGAIN RULE(8) /* a transaction that failed is tried again */
#define GONE_MOVES RULE(9) /* a session that its target has not, or has no place for, gets a new epoch */
#define SILENT_MOVES RULE(10) /* a session that tells nothing moves, if another target is there */
#define SILENT_LAST RULE(11) /* a target that has fallen silent is the last choice, */
#define SILENT_EXCUSED RULE(12) /* but not for ever */
#define SIGN_OF_LIFE RULE(13) /* a target with nothing to tell of a session says so, while its engine lives */
#define LEASE_ENDS RULE(14) /* a target frees a session that nobody acknowledges */
#define DESYNC_REPAIRED RULE(15) /* a target that says it is out of step is opened in a new epoch */

/* Second lines of defence: without one of these alone every answer still ends, as check.py shows too. */

#define LOST_MOVES RULE(16) /* second: a session leaves a target that is lost, before it counts as silent */
#define CONFLICT_REPAIRED RULE(17) /* second: tokens that contradict the ledger's begin a new epoch */
#define RESENT RULE(18) /* second: what is missing is asked for by RESEND */
#define OPENED_AGAIN RULE(19) /* second: an OPEN that is repeated is answered again */
#define OLD_ENDED RULE(20) /* second: a target that the session leaves is told */

/* --- what there is --- */

mtype = { PART, OPEN, ACK, RESEND, END, OPENED, TOLD, DONE, DESYNC, GONE };

/* Kind, epoch, a length, the length before (TOLD), and whether an altered token is in it. */
chan to_target[2] = [QUEUE] of { mtype, byte, byte, byte, bool };
chan to_orchestrator[2] = [QUEUE] of { mtype, byte, byte, byte, bool };

byte faults; /* so far */

/* The orchestrator and its ledger. */
byte epoch = 1, length, durable;
byte chosen; /* 0: no target, or 1 + its number */
bool ready = 1, opened, parted; /* it may choose one; that has answered OPEN; only PART was sent to it */
bool finished, adrift; /* DONE came, with all tokens; no epoch is left */
bool disk_failed;
byte silence;
bool lost[2]; /* it knows that this target is dead */
byte avoided[2];

/* Each target. */
bool dead[2], hung[2]; /* for good; its engine does nothing any more */
bool taken[2] = 1;      /* its only place is taken by a session of somebody who is gone */
bool held[2], opening[2], ended[2], out_of_step[2], altered[2];
byte epoch_at[2], length_at[2], acked_at[2], lease[2], prefill[2];

#define WELL(t) (!dead[t] && !hung[t])
#define MAY_FAIL (faults < FAULTS)
#define MAY_STEP(t) \
  (held[t] && !opening[t] && !ended[t] && !out_of_step[t] && WELL(t) && prefill[t] == 0 && \
   length_at[t] - acked_at[t] < CREDIT)
#define MAY_CHOOSE(t) \
  (chosen == 0 && ready && !adrift && !lost[t] && \
   (avoided[t] == 0 || avoided[1 - t] > 0 || lost[1 - t] || !SILENT_LAST))
#define MAY_COMMIT (durable < length && !disk_failed)
#define QUIET \
  (len(to_target[0]) + len(to_target[1]) + len(to_orchestrator[0]) + len(to_orchestrator[1]) == 0 && \
   !MAY_STEP(0) && !MAY_STEP(1) && !MAY_CHOOSE(0) && !MAY_CHOOSE(1) && !MAY_COMMIT)

inline send(queue, what, its_epoch, upto, after, wrong) {
  if
  :: len(queue) < QUEUE -> queue!what(its_epoch, upto, after, wrong)
  :: else
  fi
}

/* --- the orchestrator --- */

inline send_open() {
  if
  :: parted -> send(to_target[chosen - 1], PART, epoch, 0, 0, 0)
  :: else -> send(to_target[chosen - 1], OPEN, epoch, length, 0, 0)
  fi
}

inline send_ack() {
  send(to_target[chosen - 1], ACK, epoch, durable, 0, 0)
}

inline next_epoch() {
  if
  :: epoch < EPOCHS -> epoch++
  :: else -> adrift = 1
  fi;
  opened = 0; silence = 0
}

inline leave_target() {
  next_epoch();
  chosen = 0; parted = 0
}

inline repair() {
  next_epoch();
  send_open()
}

inline on_tokens(more, from, bad) {
  if
  :: from > length && RESENT -> send(to_target[chosen - 1], RESEND, epoch, length, 0, 0)
  :: from > length && !RESENT
  :: from <= length && bad && CONFLICT_REPAIRED -> repair()
  :: from <= length && bad && !CONFLICT_REPAIRED
  :: from <= length && !bad && more > length -> length = more; avoided[chosen - 1] = 0
  :: from <= length && !bad && more <= length && CREDIT_BACK -> send_ack()
  :: else
  fi
}

inline on_done(more, bad) {
  if
  :: more > length && RESENT -> send(to_target[chosen - 1], RESEND, epoch, length, 0, 0)
  :: more > length && !RESENT
  :: more <= length && bad -> repair()
  :: more <= length && !bad -> finished = 1; send(to_target[chosen - 1], END, epoch, 0, 0, 0)
  fi
}

inline on_opened(whole) {
  if
  :: whole -> opened = 1; if :: durable > 0 && CREDIT_BACK -> send_ack() :: else fi
  :: !whole && parted && PART_FOLLOWED -> parted = 0; send_open()
  :: else
  fi
}

#define RECEIVE(t) \
  :: d_step { to_orchestrator[t]?kind(e, more, from, bad) -> \
       if \
       :: chosen == 1 + t && e == epoch && !adrift && !finished -> \
          silence = 0; \
          if \
          :: kind == OPENED -> on_opened(more) \
          :: kind == TOLD -> on_tokens(more, from, bad) \
          :: kind == DONE -> on_done(more, bad) \
          :: kind == DESYNC && DESYNC_REPAIRED -> repair() \
          :: kind == GONE && GONE_MOVES -> leave_target(); ready = 0 /* not at once */ \
          :: else \
          fi \
       :: else \
       fi; \
       kind = 0; e = 0; more = 0; from = 0; bad = 0 }

active proctype orchestrator() {
  mtype kind;
  byte e, more, from;
  bool bad;
end:
  do
  RECEIVE(0)
  RECEIVE(1)
  :: d_step { MAY_CHOOSE(0) -> chosen = 1; parted = 1; send_open() }
  :: d_step { MAY_CHOOSE(1) -> chosen = 2; parted = 1; send_open() }
  :: d_step { MAY_COMMIT -> durable = length; if :: opened && CREDIT_BACK -> send_ack() :: else fi }
  od
}

/* --- a target --- */

inline drop(t) {
  held[t] = 0; opening[t] = 0; ended[t] = 0; out_of_step[t] = 0; altered[t] = 0;
  epoch_at[t] = 0; length_at[t] = 0; acked_at[t] = 0; lease[t] = 0; prefill[t] = 0
}

inline tell(t, base) {
  send(to_orchestrator[t], TOLD, epoch_at[t], length_at[t], base, altered[t])
}

inline tell_if_done(t) {
  ended[t] = (length_at[t] == TOKENS);
  if
  :: ended[t] -> send(to_orchestrator[t], DONE, epoch_at[t], TOKENS, 0, altered[t])
  :: else
  fi
}

/* OPEN, or PART, which brings no token. What is held of the prompt is not computed again. */
inline take_over(t, is_part, e, more) {
  prefill[t] = (held[t] && !opening[t] -> prefill[t] : PREFILL);
  held[t] = 1; opening[t] = is_part; out_of_step[t] = 0; altered[t] = 0;
  epoch_at[t] = e; length_at[t] = more; acked_at[t] = 0; lease[t] = 0;
  send(to_orchestrator[t], OPENED, e, !is_part, 0, 0);
  if
  :: !is_part -> tell_if_done(t)
  :: else -> ended[t] = 0
  fi
}

inline on_open(t, is_part, e, more) {
  if
  :: taken[t] || (held[t] && e < epoch_at[t]) || (!held[t] && !is_part) ->
     send(to_orchestrator[t], GONE, e, 0, 0, 0)
  :: else ->
     if
     :: !held[t] || e > epoch_at[t] || out_of_step[t] || (opening[t] && !is_part && OPENING_OPENS) ->
        take_over(t, is_part, e, more)
     :: else ->
        if
        :: OPENED_AGAIN -> send(to_orchestrator[t], OPENED, e, !opening[t], 0, 0)
        :: else
        fi
     fi
  fi
}

inline on_ack(t, more) {
  lease[t] = 0;
  if
  :: out_of_step[t] || more > length_at[t] || (altered[t] && more > 0) ->
     out_of_step[t] = 1; send(to_orchestrator[t], DESYNC, epoch_at[t], 0, 0, 0)
  :: else -> acked_at[t] = (more > acked_at[t] -> more : acked_at[t])
  fi
}

active [2] proctype target() {
  mtype kind;
  byte e, more, from;
  bool bad;
  byte t = _pid - 1;
end:
  do
  :: d_step { to_target[t]?kind(e, more, from, bad) ->
       if
       :: dead[t]
       :: !dead[t] && (kind == OPEN || kind == PART) -> on_open(t, (kind == PART), e, more)
       :: !dead[t] && kind == END && held[t] && e >= epoch_at[t] -> drop(t)
       :: !dead[t] && (kind == ACK || kind == RESEND) && (!held[t] || e > epoch_at[t] || opening[t]) ->
          send(to_orchestrator[t], GONE, e, 0, 0, 0)
       :: !dead[t] && kind == ACK && held[t] && e == epoch_at[t] && !opening[t] -> on_ack(t, more)
       :: !dead[t] && kind == RESEND && held[t] && e == epoch_at[t] && !opening[t] -> tell(t, more)
       :: else
       fi;
       kind = 0; e = 0; more = 0; from = 0; bad = 0 }
  :: d_step { MAY_STEP(t) -> length_at[t]++;
       assert(length_at[t] - durable <= CREDIT);
       tell(t, length_at[t] - 1); tell_if_done(t) }
  od
}

/* --- time --- */

inline time_at_target(t) {
  lease[t]++;
  if
  :: lease[t] > LEASE && LEASE_ENDS && taken[t] -> taken[t] = 0; lease[t] = 0
  :: lease[t] > LEASE && LEASE_ENDS && !taken[t] -> drop(t)
  :: else -> lease[t] = (held[t] || taken[t] -> (lease[t] > LEASE -> LEASE : lease[t]) : 0)
  fi;
  if
  :: held[t] && !opening[t] && !out_of_step[t] && acked_at[t] < length_at[t] && TOKENS_REPEATED ->
     tell(t, acked_at[t])
  :: held[t] && !opening[t] && !out_of_step[t] && acked_at[t] >= length_at[t] && !ended[t] && SIGN_OF_LIFE &&
     !hung[t] -> tell(t, length_at[t])
  :: else
  fi;
  if
  :: held[t] && ended[t] && !out_of_step[t] && DONE_REPEATED ->
     send(to_orchestrator[t], DONE, epoch_at[t], TOKENS, 0, altered[t])
  :: else
  fi;
  prefill[t] = (prefill[t] > 0 && !hung[t] && !opening[t] -> prefill[t] - 1 : prefill[t])
}

inline time_at_orchestrator() {
  lost[0] = dead[0]; lost[1] = dead[1];
  avoided[0] = (avoided[0] > 0 && SILENT_EXCUSED -> avoided[0] - 1 : avoided[0]);
  avoided[1] = (avoided[1] > 0 && SILENT_EXCUSED -> avoided[1] - 1 : avoided[1]);
  disk_failed = (LEDGER_AGAIN -> 0 : disk_failed);
  ready = 1;
  silence = (chosen != 0 && silence <= SILENCE -> silence + 1 : silence);
  if
  :: adrift || finished || chosen == 0
  :: else ->
     if
     :: lost[chosen - 1] && LOST_MOVES -> leave_target()
     :: !(lost[chosen - 1] && LOST_MOVES) && silence > SILENCE && SILENT_MOVES && !lost[2 - chosen] &&
        (avoided[2 - chosen] == 0 || !SILENT_LAST) ->
        avoided[chosen - 1] = AVOIDED;
        number = chosen - 1;
        leave_target();
        if
        :: OLD_ENDED -> send(to_target[number], END, epoch, 0, 0, 0)
        :: else
        fi;
        number = 0
     :: else ->
        if
        :: !opened && OPEN_REPEATED -> send_open()
        :: opened && ACK_REPEATED && CREDIT_BACK -> send_ack()
        :: else
        fi
     fi
  fi
}

active proctype time() {
  byte number;
end:
  do
  :: d_step { QUIET ->
       if :: !dead[0] -> time_at_target(0) :: else fi;
       if :: !dead[1] -> time_at_target(1) :: else fi;
       time_at_orchestrator() }
  :: d_step { !QUIET && MAY_FAIL -> faults++; time_at_orchestrator() }
  :: d_step { !QUIET && MAY_FAIL && !dead[0] -> faults++; time_at_target(0) }
  :: d_step { !QUIET && MAY_FAIL && !dead[1] -> faults++; time_at_target(1) }
  od
}

/* --- other faults --- */

#define LOSES(queue) :: d_step { MAY_FAIL && len(queue) > 0 -> faults++; queue?_(_, _, _, _) }

/* One target stays well, or there is nobody who could answer. */
#define FAILS(t) \
  :: d_step { MAY_FAIL && WELL(0) && WELL(1) -> faults++; dead[t] = 1; drop(t) } \
  :: d_step { MAY_FAIL && WELL(0) && WELL(1) -> faults++; hung[t] = 1 } \
  :: d_step { MAY_FAIL && !dead[t] && held[t] -> faults++; drop(t) } \
  :: d_step { MAY_FAIL && held[t] && acked_at[t] > 0 && !altered[t] -> faults++; altered[t] = 1 }

active proctype fault() {
end:
  do
  LOSES(to_target[0])
  LOSES(to_target[1])
  LOSES(to_orchestrator[0])
  LOSES(to_orchestrator[1])
  FAILS(0)
  FAILS(1)
  :: d_step { MAY_FAIL && MAY_COMMIT -> faults++; disk_failed = 1 }

  /* The orchestrator dies, and is started again with what the ledger has. */
  :: d_step { MAY_FAIL && !finished -> faults++;
       leave_target(); length = durable; ready = 1; avoided[0] = 0; avoided[1] = 0; lost[0] = 0; lost[1] = 0 }
  od
}

ltl ends { <> (finished && durable == TOKENS) }
