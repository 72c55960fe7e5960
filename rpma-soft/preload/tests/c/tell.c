/* SPDX-License-Identifier: MIT OR Apache-2.0 */
#include "tell.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define TIME_LIMIT_S 60

const char *scene = "start";

static void
out_of_time(int signal)
{
	static const char text[] = "out of time, in the step that follows the last line\n";
	ssize_t written = write(STDERR_FILENO, text, sizeof(text) - 1);

	(void)written;
	(void)signal;
	_exit(1);
}

void
tell_in_time(void)
{
	/* What was printed before a step hangs or crashes is what tells which one. */
	setvbuf(stdout, NULL, _IOLBF, 0);
	signal(SIGALRM, out_of_time);
	alarm(TIME_LIMIT_S);
}

void
tell(const char *format, ...)
{
	va_list arguments;

	printf("%s: ", scene);
	va_start(arguments, format);
	vprintf(format, arguments);
	va_end(arguments);
	putchar('\n');
}

void
give_up(const char *why)
{
	tell("GIVING UP: %s", why);
	exit(1);
}

void
holds(const char *claim, bool true_or_not)
{
	tell("%s: %s", claim, true_or_not ? "yes" : "NO");
}

void
readable(const char *what, int fd)
{
	struct pollfd waited_for = {.fd = fd, .events = POLLIN};
	int n = poll(&waited_for, 1, -1);

	tell("the descriptor of the %s: %s", what, n == 1 && waited_for.revents == POLLIN ? "readable" : "NOT readable");
}

void
blocking(int fd, bool wanted)
{
	int flags = fcntl(fd, F_GETFL);

	if (flags < 0 || fcntl(fd, F_SETFL, wanted ? flags & ~O_NONBLOCK : flags | O_NONBLOCK))
		give_up("fcntl");
}
