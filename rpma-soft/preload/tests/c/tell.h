/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * How these programs tell what happens: in lines that are the same at each run.
 */
#ifndef TELL_H
#define TELL_H

#include <stdbool.h>

/* The scene that is being played: the first word of each line. */
extern const char *scene;

/* Has each line written at once, and ends the process if it takes longer than anything here does. */
void tell_in_time(void);

__attribute__((format(printf, 1, 2))) void tell(const char *format, ...);

/* Ends the process, since what follows would make no sense. */
void give_up(const char *why);

void holds(const char *claim, bool true_or_not);

/* Waits until there is something to read. */
void readable(const char *what, int fd);

void blocking(int fd, bool wanted);

#endif
