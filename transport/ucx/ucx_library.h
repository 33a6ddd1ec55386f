/* SPDX-License-Identifier: Apache-2.0 */
/**
 * UCX's library, opened at run time: a table of its functions, and the manners it is taught while it is loaded. One a process; it
 * stays loaded, for its threads and exit handlers may outlive us.
 *
 * Built with the headers of any UCX from 1.11 on, run with any from 1.11 on: only calls of 1.11 are made, and every struct that is
 * handed over says by its field_mask which of its fields there are.
 */
#ifndef QUOIT_TRANSPORT_UCX_LIBRARY_H
#define QUOIT_TRANSPORT_UCX_LIBRARY_H

#include "base/status.h"
#include "quoit/quoit_transport.h"

#include <ucp/api/ucp.h>
#include <ucs/async/async_fwd.h>

/* name of the function; all must be there */
#define UCX_FUNCTION_LIST(FUNCTION) \
    FUNCTION(ucp_get_version) \
    FUNCTION(ucp_get_version_string) \
    FUNCTION(ucp_config_read) \
    FUNCTION(ucp_config_modify) \
    FUNCTION(ucp_config_release) \
    FUNCTION(ucp_init_version) \
    FUNCTION(ucp_cleanup) \
    FUNCTION(ucp_mem_map) \
    FUNCTION(ucp_mem_unmap) \
    FUNCTION(ucp_worker_create) \
    FUNCTION(ucp_worker_destroy) \
    FUNCTION(ucp_worker_progress) \
    FUNCTION(ucp_worker_get_efd) \
    FUNCTION(ucp_worker_arm) \
    FUNCTION(ucp_worker_set_am_recv_handler) \
    FUNCTION(ucp_listener_create) \
    FUNCTION(ucp_listener_destroy) \
    FUNCTION(ucp_listener_query) \
    FUNCTION(ucp_listener_reject) \
    FUNCTION(ucp_conn_request_query) \
    FUNCTION(ucp_ep_create) \
    FUNCTION(ucp_ep_close_nbx) \
    FUNCTION(ucp_ep_flush_nbx) \
    FUNCTION(ucp_ep_print_info) \
    FUNCTION(ucp_am_send_nbx) \
    FUNCTION(ucp_am_data_release) \
    FUNCTION(ucp_request_free) \
    FUNCTION(ucs_async_set_event_handler) \
    FUNCTION(ucs_async_remove_handler) \
    FUNCTION(ucs_status_string)

typedef struct ucx_library {
#define UCX_FUNCTION_MEMBER(name) __typeof__(&name) name;
    UCX_FUNCTION_LIST(UCX_FUNCTION_MEMBER)
#undef UCX_FUNCTION_MEMBER
    unsigned minor;
    char version[32]; /* "1.13.1" */
} ucx_library_t;

enum {
    UCX_API_MAJOR = 1,
    UCX_API_MINOR = 11,
    UCX_MINOR_PROTOCOLS = 16 /* from here on it estimates what each protocol costs (its setting PROTO_ENABLE), and takes handles of memory with a send */
};

/**
 * Open the library that UCX_LIBRARY names, libucp.so.0 when it names none. Later calls give the same answer, a failure too.
 * Signal handlers that UCX installs while it is loaded are taken away again, and what UCX would print goes to Quoit's log, unless
 * the user's environment asks UCX for either (UCX_HANDLE_ERRORS, UCX_ERROR_SIGNALS; UCX_LOG_FILE), or the program had loaded UCX
 * before us: then it is not ours to change.
 * @return ERR_NOT_FOUND with the reason.
 */
quoit_status_t ucx_library_open(const quoit_transport_environment_t *environment, const ucx_library_t **library);

#endif
