/* SPDX-License-Identifier: Apache-2.0 */
/** Starting the ranks of one host: this program executes itself once a rank, watches, and cleans up. */
#ifndef QUOIT_BENCH_LAUNCH_H
#define QUOIT_BENCH_LAUNCH_H

/**
 * Start `ranks` copies of this program with its own arguments plus --rank, --size and --store (a file in a private directory), and
 * wait. SIGINT, SIGTERM, SIGHUP and SIGQUIT go on to the ranks. When one fails the others get some seconds to notice; what is left
 * then is killed, by pid. Prints which rank failed first, and each failed rank's text.
 *
 * Must be called before any use of the library. Returns the exit status: 0, 1, or 128 + signal.
 */
int launch_ranks(int ranks, int argc, char **argv);

#endif
