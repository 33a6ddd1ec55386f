/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Descriptors that a forked child has no use for. A child that lives on would keep the parent's sockets open after the parent's death, and
 * peers on other hosts would see their end only with the child's. So a fork handler closes them in the child.
 */
#ifndef QUOIT_BASE_FORKED_H
#define QUOIT_BASE_FORKED_H

#include <stdbool.h>

/** Children close `fd` from now on. Any thread. */
void forked_close(int fd);
/** No longer. False when this process is a child that has closed it already: the number may be another file's by now. */
bool forked_keep(int fd);

#endif
