/* SPDX-License-Identifier: Apache-2.0 */
/**
 * libibverbs as a table of functions, opened at run time: the library builds with its headers only and runs without it. Posting and
 * polling are inline functions of <infiniband/verbs.h> that go through the context's own table, so only the others are here.
 */
#ifndef QUOIT_TRANSPORT_VERBS_LIBRARY_H
#define QUOIT_TRANSPORT_VERBS_LIBRARY_H

#include "base/status.h"

#include <infiniband/verbs.h>

/* What is called, without the ibv_ in front of it. query_port: the old symbol, which fills the front of the struct. */
#define VERBS_CALL_LIST                                                                                    \
    VERBS_CALL(struct ibv_device **, get_device_list, (int *count))                                        \
    VERBS_CALL(void, free_device_list, (struct ibv_device * *list))                                        \
    VERBS_CALL(const char *, get_device_name, (struct ibv_device * device))                                \
    VERBS_CALL(struct ibv_context *, open_device, (struct ibv_device * device))                            \
    VERBS_CALL(int, close_device, (struct ibv_context * context))                                          \
    VERBS_CALL(int, query_device, (struct ibv_context * context, struct ibv_device_attr * attributes))     \
    VERBS_CALL(int, query_port, (struct ibv_context * context, uint8_t port, struct ibv_port_attr * attributes)) \
    VERBS_CALL(int, query_gid, (struct ibv_context * context, uint8_t port, int index, union ibv_gid * gid)) \
    VERBS_CALL(struct ibv_pd *, alloc_pd, (struct ibv_context * context))                                  \
    VERBS_CALL(int, dealloc_pd, (struct ibv_pd * pd))                                                      \
    VERBS_CALL(struct ibv_mr *, reg_mr, (struct ibv_pd * pd, void *address, size_t length, int access))    \
    VERBS_CALL(int, dereg_mr, (struct ibv_mr * mr))                                                        \
    VERBS_CALL(struct ibv_comp_channel *, create_comp_channel, (struct ibv_context * context))             \
    VERBS_CALL(int, destroy_comp_channel, (struct ibv_comp_channel * channel))                             \
    VERBS_CALL(struct ibv_cq *, create_cq,                                                                 \
               (struct ibv_context * context, int entries, void *user, struct ibv_comp_channel *channel, int vector)) \
    VERBS_CALL(int, destroy_cq, (struct ibv_cq * cq))                                                      \
    VERBS_CALL(int, get_cq_event, (struct ibv_comp_channel * channel, struct ibv_cq * *cq, void **user))   \
    VERBS_CALL(void, ack_cq_events, (struct ibv_cq * cq, unsigned count))                                  \
    VERBS_CALL(struct ibv_qp *, create_qp, (struct ibv_pd * pd, struct ibv_qp_init_attr * attributes))     \
    VERBS_CALL(int, modify_qp, (struct ibv_qp * qp, struct ibv_qp_attr * attributes, int mask))            \
    VERBS_CALL(int, destroy_qp, (struct ibv_qp * qp))                                                      \
    VERBS_CALL(int, get_async_event, (struct ibv_context * context, struct ibv_async_event * event))       \
    VERBS_CALL(void, ack_async_event, (struct ibv_async_event * event))                                    \
    VERBS_CALL(int, fork_init, (void))

typedef struct verbs_library {
#define VERBS_CALL(result, name, arguments) result(*name) arguments;
    VERBS_CALL_LIST
#undef VERBS_CALL
    /* Newer than the oldest library we run with; NULL where they are missing. */
    int (*query_gid_ex)(struct ibv_context *context, uint32_t port, uint32_t index, struct ibv_gid_entry *entry, uint32_t flags,
                        size_t size);
    enum ibv_fork_status (*is_fork_initialized)(void);
    struct ibv_mr *(*reg_mr_iova2)(struct ibv_pd *pd, void *address, size_t length, uint64_t iova, unsigned access);
    struct ibv_mr *(*reg_dmabuf_mr)(struct ibv_pd *pd, uint64_t offset, size_t length, uint64_t iova, int descriptor, int access);
} verbs_library_t;

/**
 * The library at `path` (setting VERBS_LIBRARY), opened on the first call and never closed. One path a process.
 * @return ERR_NOT_FOUND with the loader's text, or the function that is missing.
 */
quoit_status_t verbs_library_open(const char *path, const verbs_library_t **library);

#endif
