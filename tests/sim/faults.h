/* faults.h - which faults a seed has (swarm: each seed has its own few kinds), and when they strike: at a
 * random moment, or when a frame of some type goes out, so that they find programs in every state. */
#pragma once

#include "tests/sim/world.h"

extern const char *const faults_names[FAULT_KINDS];

void faults_plan(world *w);
void faults_next(world *w);                /* of ALARM_FAULT */
void faults_frame(world *w, const msg *m); /* every frame that goes out */
void faults_strike(world *w, int kind);    /* of ALARM_STRIKE */
void faults_heal(world *w);                /* partitions and queues: of ALARM_HEAL */
void faults_calm(world *w);                /* so that both sides can be compared */
