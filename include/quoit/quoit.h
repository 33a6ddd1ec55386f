/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Quoit's public C API: collectives among ranks, over whatever joins them.
 *
 * In short, on each rank, and with each status looked at (examples/allreduce.c is a whole program):
 *
 *     quoit_store_open("env://", rank, size, 0, &store);     where the ranks meet, from MASTER_ADDR and MASTER_PORT
 *     quoit_comm_create(store, rank, size, NULL, &comm);     blocks until all have come
 *     quoit_store_close(store);
 *     quoit_allreduce(comm, in, out, count, QUOIT_F32, QUOIT_SUM, NULL, NULL);              blocks
 *     quoit_allreduce(comm, in, out, count, QUOIT_F32, QUOIT_SUM, NULL, &request);          or returns at once
 *     quoit_request_wait(request, -1);
 *     quoit_request_free(request);
 *     quoit_comm_destroy(comm);
 *
 * Rules that hold for every call
 *  - A call that can fail returns quoit_status_t. Outputs come last and are written only on QUOIT_OK.
 *  - The text of the calling thread's newest failure is quoit_last_error(); a communicator keeps the text of its first error
 *    (quoit_comm_error). Texts name rank, host, operation, cause and cure.
 *  - Counts are elements, lengths are bytes, times are milliseconds.
 *  - Structs that may grow begin with `struct_size`, to be set to sizeof the struct by the caller. Begin with their ..._INIT.
 *  - Every rank of a communicator calls its collectives, in the same order and with the same dtype, op, root and (where it is one number) count.
 *  - Calls on one communicator, store or request may come from several threads; destroying, closing or freeing one is nobody's but the last
 *    user's. Collectives match in the order in which they are issued.
 *  - A bad argument is an error of that call alone, on that rank: nothing was begun, and the communicator is as it was. An error that an
 *    operation ends with ends the communicator, on all its ranks: what runs, and every later operation, ends with that first error. Then destroy
 *    it, or go on with the ranks that are left (quoit_comm_shrink, quoit_comm_create_group). quoit_comm_error tells which of the two it was.
 *  - Nothing waits for ever: operations and creation have a time limit, setting TIMEOUT where none is given.
 *  - After fork() the child gets QUOIT_ERR_FORKED from every call on an inherited object; destroying one there does nothing. It may create
 *    communicators of its own.
 */
#ifndef QUOIT_QUOIT_H
#define QUOIT_QUOIT_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define QUOIT_VERSION_MAJOR 0
#define QUOIT_VERSION_MINOR 1
#define QUOIT_VERSION_PATCH 0

#if defined(__GNUC__)
#define QUOIT_API __attribute__((visibility("default")))
#else
#define QUOIT_API
#endif

/* ---------------------------------------------------------------- status */

/**
 * X(name, value, text). Positive: not an error. Negative: an error. What each call may return beside ERR_INVALID, ERR_NO_MEMORY, ERR_SYSTEM,
 * ERR_FORKED and (for a communicator that has failed) its first error is said there. An operation ends with ERR_TIMEOUT, ERR_PEER (a rank died
 * or left), ERR_NETWORK, ERR_MISMATCH, ERR_ABORTED, ERR_CLOSED (destroyed while it ran) or ERR_PROTOCOL (a peer sent nonsense). ERR_AGAIN and
 * ERR_INTERNAL come from transports, and from a fault of the library.
 */
#define QUOIT_STATUS_LIST(X) \
    X(OK, 0, "success") \
    X(IN_PROGRESS, 1, "not finished yet") \
    X(ERR_INVALID, -1, "invalid argument") \
    X(ERR_UNSUPPORTED, -2, "not supported") \
    X(ERR_NO_MEMORY, -3, "out of memory") \
    X(ERR_SYSTEM, -4, "system call failed") \
    X(ERR_TIMEOUT, -5, "timed out") \
    X(ERR_PEER, -6, "a peer died or left") \
    X(ERR_NETWORK, -7, "network failure") \
    X(ERR_MISMATCH, -8, "ranks called different operations") \
    X(ERR_ABORTED, -9, "communicator was aborted") \
    X(ERR_CLOSED, -10, "object is closed") \
    X(ERR_FORKED, -11, "object belongs to the parent process") \
    X(ERR_PROTOCOL, -12, "peer broke the protocol") \
    X(ERR_AGAIN, -13, "try again later") \
    X(ERR_NOT_FOUND, -14, "not found") \
    X(ERR_INTERNAL, -15, "internal error")

typedef enum quoit_status {
#define QUOIT_STATUS_ENUM(name, value, text) QUOIT_##name = (value),
    QUOIT_STATUS_LIST(QUOIT_STATUS_ENUM)
#undef QUOIT_STATUS_ENUM
} quoit_status_t;

/** Constant English text of a status; never NULL, "unknown status" for a value that is none. */
QUOIT_API const char *quoit_status_text(quoit_status_t status);

/** Text of the newest failure in the calling thread; "" when there was none. Valid until the thread's next failing call. */
QUOIT_API const char *quoit_last_error(void);

/** Version of the library that is loaded, "major.minor.patch". */
QUOIT_API const char *quoit_version(void);

/* ---------------------------------------------------------------- settings */

/**
 * Settings are variables QUOIT_<NAME> of the environment, read once, at the first call of the library; quoit_setting_set
 * overrides one before that. A bad value makes the first communicator fail with ERR_INVALID and a text that names variable, value
 * and what is allowed; an unknown QUOIT_* variable is warned about once.
 */

/** Override setting `name` ("TCP_SOCKETS", without the prefix). ERR_INVALID: unknown name, bad value, or already in use. */
QUOIT_API quoit_status_t quoit_setting_set(const char *name, const char *value);

/** Value in force as text. The string lives as long as the process. */
QUOIT_API quoit_status_t quoit_setting_get(const char *name, const char **value);

/**
 * The same as a number: durations in microseconds, sizes in bytes, yes and no as 1 and 0, of a choice among words its place in the list of them. ERR_INVALID:
 * unknown name, or a setting that is text.
 */
QUOIT_API quoit_status_t quoit_setting_get_number(const char *name, int64_t *value);

/** All settings with type, unit, default, value in force and description. `*text` is to be freed with free(). */
QUOIT_API quoit_status_t quoit_settings_print(char **text);

/* ---------------------------------------------------------------- types and operations */

/** X(NAME, name, bytes). The fp8 fnuz forms are moved, never reduced. */
#define QUOIT_DTYPE_LIST(X) \
    X(F64, "float64", 8) \
    X(F32, "float32", 4) \
    X(F16, "float16", 2) \
    X(BF16, "bfloat16", 2) \
    X(F8_E4M3, "float8_e4m3fn", 1) \
    X(F8_E5M2, "float8_e5m2", 1) \
    X(F8_E4M3FNUZ, "float8_e4m3fnuz", 1) \
    X(F8_E5M2FNUZ, "float8_e5m2fnuz", 1) \
    X(I8, "int8", 1) \
    X(U8, "uint8", 1) \
    X(I16, "int16", 2) \
    X(U16, "uint16", 2) \
    X(I32, "int32", 4) \
    X(U32, "uint32", 4) \
    X(I64, "int64", 8) \
    X(U64, "uint64", 8) \
    X(BOOL, "bool", 1) \
    X(C64, "complex64", 8) \
    X(C128, "complex128", 16)

typedef enum quoit_dtype {
#define QUOIT_DTYPE_ENUM(NAME, name, bytes) QUOIT_##NAME,
    QUOIT_DTYPE_LIST(QUOIT_DTYPE_ENUM)
#undef QUOIT_DTYPE_ENUM
    QUOIT_DTYPE_COUNT
} quoit_dtype_t;

/**
 * X(NAME, name). Support: sum, prod: all numbers (bool: sum is "or", prod is "and"); avg: all but bool (integers truncate towards
 * zero); min, max: all but complex (NaN wins over numbers); premul_sum: floats and complex; band, bor, bxor: integers and bool.
 * No operation on the fnuz forms. Anything else: ERR_UNSUPPORTED, "not supported: op band on float32".
 */
#define QUOIT_OP_LIST(X) \
    X(SUM, "sum") \
    X(PROD, "prod") \
    X(MIN, "min") \
    X(MAX, "max") \
    X(AVG, "avg") \
    X(PREMUL_SUM, "premul_sum") \
    X(BAND, "band") \
    X(BOR, "bor") \
    X(BXOR, "bxor")

typedef enum quoit_op {
#define QUOIT_OP_ENUM(NAME, name) QUOIT_##NAME,
    QUOIT_OP_LIST(QUOIT_OP_ENUM)
#undef QUOIT_OP_ENUM
    QUOIT_OP_COUNT
} quoit_op_t;

QUOIT_API size_t quoit_dtype_size(quoit_dtype_t dtype);      /* bytes of one element; 0 for a value that is no dtype */
QUOIT_API const char *quoit_dtype_name(quoit_dtype_t dtype); /* "float32"; "?" for a value that is no dtype */
QUOIT_API const char *quoit_op_name(quoit_op_t op);          /* "sum"; "?" for a value that is no op */
/** QUOIT_OK, or ERR_UNSUPPORTED with a text "not supported: op band on float32". */
QUOIT_API quoit_status_t quoit_op_check(quoit_dtype_t dtype, quoit_op_t op);

/* ---------------------------------------------------------------- bootstrap store */

/** A key-value store through which ranks find each other. Used only while a communicator is created. */
typedef struct quoit_store quoit_store_t;

/** A framework's own store. Every call may block; none may call back into Quoit. Keys are short printable text. */
typedef struct quoit_store_callbacks {
    size_t struct_size;
    void *context;
    quoit_status_t (*set)(void *context, const char *key, const void *value, size_t length);
    /** Waits up to timeout_ms for the key. *value is from malloc() and becomes the caller's. ERR_TIMEOUT when it did not appear. */
    quoit_status_t (*get)(void *context, const char *key, int timeout_ms, void **value, size_t *length);
    void (*close)(void *context); /* may be NULL */
    const char *description;      /* e.g. "TCPStore 10.0.0.1:29500"; copied */
} quoit_store_callbacks_t;

/** The struct is copied; context must live until quoit_store_close, which calls `close`. ERR_INVALID: set or get is NULL. */
QUOIT_API quoit_status_t quoit_store_from_callbacks(const quoit_store_callbacks_t *callbacks, quoit_store_t **store);

/**
 * Open a store of Quoit's own.
 *
 * @param url  "tcp://host:port" (rank 0 serves it; "tcp://[::1]:port" for IPv6), "file:///path" (a file all ranks can lock),
 *             or "env://" (QUOIT_STORE, else MASTER_ADDR and MASTER_PORT).
 * @param timeout_ms  of reaching it, and of locks; 0 or less: setting TIMEOUT.
 * @return ERR_TIMEOUT with the addresses tried when the server cannot be reached in that time.
 */
QUOIT_API quoit_status_t quoit_store_open(const char *url, int rank, int size, int timeout_ms, quoit_store_t **store);
/** Replaces what the key had. key: 1 to 255 bytes of printable ASCII; value: up to 16 MiB in Quoit's own stores. */
QUOIT_API quoit_status_t quoit_store_set(quoit_store_t *store, const char *key, const void *value, size_t length);
/** Waits up to timeout_ms for the key (0: looks once; negative: setting TIMEOUT), then ERR_TIMEOUT. *value is to be freed with free(). */
QUOIT_API quoit_status_t quoit_store_get(quoit_store_t *store, const char *key, int timeout_ms, void **value, size_t *length);
/** Rank 0's tcp:// store serves on until its clients have closed theirs, 2 s at most. NULL is accepted. */
QUOIT_API void quoit_store_close(quoit_store_t *store);

/* ---------------------------------------------------------------- devices */

/** Where a buffer lies. 0 is host memory; other ids come from quoit_device_find. */
typedef int quoit_device_t;
#define QUOIT_DEVICE_HOST 0

/** Id of the device row called `name` ("host", and in tests "lagging"). ERR_NOT_FOUND lists the names there are. */
QUOIT_API quoit_status_t quoit_device_find(const char *name, quoit_device_t *device);

/* ---------------------------------------------------------------- communicators */

typedef struct quoit_comm quoit_comm_t;
typedef struct quoit_request quoit_request_t;

/**
 * What sums of floats are while they cross the network between hosts; inside a host they stay as they are, and everything else goes
 * as it is. docs/wire.md says which collectives, dtypes and ops it is for, and how large the errors are.
 */
typedef enum quoit_wire {
    QUOIT_WIRE_DEFAULT, /* setting WIRE_DTYPE of rank 0 */
    QUOIT_WIRE_NONE,    /* of the caller's dtype */
    QUOIT_WIRE_F32,     /* 16- and 8-bit floats as float32: rounded once in all */
    QUOIT_WIRE_BF16, QUOIT_WIRE_F16, /* float32 in half the bytes */
    QUOIT_WIRE_I8,      /* float32 in 0.26 of the bytes, float16 and bfloat16 in 0.52: a scale for each 128 elements */
    QUOIT_WIRE_COUNT
} quoit_wire_t;
/** "none", "float32", "bf16", "fp16", "int8", "default"; "?" for what is none. */
QUOIT_API const char *quoit_wire_name(quoit_wire_t wire);

/** Fields may be added at the end: struct_size tells which there are. */
typedef struct quoit_comm_config {
    size_t struct_size;
    const char *name; /* for messages and describe; copied; NULL: "world", or the group's name */
    int timeout_ms;   /* of creation and of each operation; 0: of the parent, else setting TIMEOUT */
    int reserved;     /* must be 0 */
    quoit_wire_t wire; /* the same on all ranks, else ERR_MISMATCH at the first operation */
} quoit_comm_config_t;

#define QUOIT_COMM_CONFIG_INIT {sizeof(quoit_comm_config_t), NULL, 0, 0, QUOIT_WIRE_DEFAULT}

/**
 * Create a communicator of `size` ranks that meet in `store`. Blocks until all have come or the timeout is over.
 * The store stays the caller's and may be closed afterwards. `config` may be NULL.
 *
 * @return ERR_TIMEOUT naming the ranks that did not come; ERR_MISMATCH when ranks disagree on size or library version.
 */
QUOIT_API quoit_status_t quoit_comm_create(quoit_store_t *store, int rank, int size, const quoit_comm_config_t *config,
                                           quoit_comm_t **comm);

/**
 * Create a communicator of some ranks of `parent`, without communication: it returns at once, even when the others come later. Only its
 * members call. It may outlive `parent`, and an error that ends `parent` does not end it.
 * A parent that has failed will do, unless it was aborted: survivors who know who they are can go on so (those who do not: quoit_comm_shrink).
 * A member that is dead is told by the group's first operation.
 *
 * @param ranks  `count` distinct ranks of parent, the caller's among them; position is the rank in the new communicator. The same on all members.
 * @param name   the same on all members; NULL counts as "". It may be used again: the n-th groups of one name and member list belong together.
 */
QUOIT_API quoit_status_t quoit_comm_create_group(quoit_comm_t *parent, const int *ranks, int count, const char *name,
                                                 const quoit_comm_config_t *config, quoit_comm_t **comm);

/**
 * Collective over parent, blocking. Ranks of one colour form a communicator, ordered by key, then by their rank in parent. colour < 0: this rank
 * is in none, and *comm is NULL.
 */
QUOIT_API quoit_status_t quoit_comm_split(quoit_comm_t *parent, int colour, int key, const quoit_comm_config_t *config,
                                          quoit_comm_t **comm);

/** End all operations, here and on the other ranks, with ERR_ABORTED and `reason`. Any thread, any time; wakes every waiter. */
QUOIT_API quoit_status_t quoit_comm_abort(quoit_comm_t *comm, const char *reason);

/**
 * Go on with the survivors of a communicator that has failed or was aborted. Collective over them: they agree on who is left, also
 * when further ranks die meanwhile, and each gets a new communicator of the same members, in the old order, or an error. It works at
 * once. The old one stays failed, and is to be destroyed. It is no barrier: a member that dies afterwards fails the new one, which
 * can be shrunk in its turn.
 *
 * @param config  name, timeout and wire format of the new one (NULL, or 0: those of the old one). The timeout also bounds this call: a rank that
 *                has not called, nor died, after half of it is left out.
 * @return ERR_INVALID: the communicator has not failed, or has been shrunk already. ERR_ABORTED: the others went on without this rank.
 *         ERR_NETWORK: too few are left. Ranks whose end is not certain (a cut link, silence) may be alive and going on by themselves, so the larger part may
 *         go on, and of two equal ones the one with the lowest rank. ERR_TIMEOUT: no agreement came about.
 */
QUOIT_API quoit_status_t quoit_comm_shrink(quoit_comm_t *comm, const quoit_comm_config_t *config, quoit_comm_t **newcomm);

/** Finish what runs (bounded by setting LINGER), then free. NULL is accepted. Not to be called while another thread uses comm. */
QUOIT_API void quoit_comm_destroy(quoit_comm_t *comm);

QUOIT_API int quoit_comm_rank(const quoit_comm_t *comm); /* -1 for NULL */
QUOIT_API int quoit_comm_size(const quoit_comm_t *comm); /* 0 for NULL */
/** Which rank of the communicator that was made from the store became rank `rank` of this one; -1 for a rank that is none. */
QUOIT_API int quoit_comm_world_rank(const quoit_comm_t *comm, int rank);
QUOIT_API int quoit_comm_hosts(const quoit_comm_t *comm); /* number of hosts that its ranks are spread over */
/** Of operations that are issued from now on; at least 1. Ranks may differ. */
QUOIT_API quoit_status_t quoit_comm_set_timeout(quoit_comm_t *comm, int timeout_ms);
/** Status of the first error, QUOIT_OK when healthy; `text` (may be NULL) receives up to capacity-1 bytes and a NUL. */
QUOIT_API quoit_status_t quoit_comm_error(quoit_comm_t *comm, char *text, size_t capacity);

typedef enum quoit_format { QUOIT_FORMAT_TEXT, QUOIT_FORMAT_JSON } quoit_format_t;
/** Ranks, hosts, transports of each edge in use, counters. `*text` is to be freed with free(). */
QUOIT_API quoit_status_t quoit_comm_describe(quoit_comm_t *comm, quoit_format_t format, char **text);
/**
 * The newest operations of a communicator (64 collectives, 64 sends and recvs), what runs, and who it waits for, as text or JSON,
 * allocated with malloc. Also after it has failed. JSON times are Unix times in seconds.
 */
QUOIT_API quoit_status_t quoit_comm_history(quoit_comm_t *comm, quoit_format_t format, char **text);
/**
 * The same of all communicators of another process of this user on this machine, which need not answer: it may be stopped or hang.
 * ERR_SYSTEM when it is gone or another user's, ERR_NOT_FOUND when it does not use Quoit, ERR_MISMATCH when it uses another version.
 */
QUOIT_API quoit_status_t quoit_process_history(int pid, quoit_format_t format, char **text);
/**
 * Record a timeline of this process's operations from now on (or from its first communicator on), written at quoit_trace_stop, or
 * when the last communicator is destroyed, as JSON that Perfetto reads. path: as setting TRACE, which records from the start.
 * ERR_INVALID when one is being recorded, ERR_SYSTEM when the file cannot be made.
 */
QUOIT_API quoit_status_t quoit_trace_start(const char *path);
/** End it and write the file; QUOIT_OK when none is recorded. */
QUOIT_API quoit_status_t quoit_trace_stop(void);
/** Turn <path>.partial, which a killed process left behind, into the same JSON. */
QUOIT_API quoit_status_t quoit_trace_convert(const char *partial, const char *path);

/* ---------------------------------------------------------------- memory */

/**
 * Memory for buffers of collectives that the ranks of this host can read where it lies: an input in it is not copied to be
 * published. Any communicator of this process may be given it, and nothing has to be told: a part of a block will do, on one rank or
 * on all. allgather, reduce_scatter and allreduce (not premul_sum; between two ranks not in place) of more than 4 KiB among ranks of one host
 * gain by it; everything else treats it as any memory. An operation whose input is read so is done, for its caller, when the others have read it.
 *
 * The content is undefined, the address a multiple of 64. It lives until quoit_memory_free, also when the communicator has failed or
 * was destroyed. After fork() parent and child see the same memory, not copies of it; it stays the parent's, who alone may free it.
 *
 * Where memory cannot be shared, or three quarters of ARENA_SIZE are held, ordinary memory is given out, and a warning is logged.
 *
 * @return ERR_INVALID: 0 bytes. ERR_NO_MEMORY: the system has none at all.
 */
QUOIT_API quoit_status_t quoit_memory_alloc(quoit_comm_t *comm, size_t bytes, void **memory);
/**
 * Any thread. No operation may still use the memory; after one that has failed it may be freed at once. NULL is accepted, and so is
 * memory of the parent in a forked child, where nothing happens. Some freed blocks are kept for the next quoit_memory_alloc.
 */
QUOIT_API void quoit_memory_free(void *memory);

/* ---------------------------------------------------------------- requests */

/**
 * Every operation takes a last argument `request`. NULL: the call blocks and returns the operation's result. Else it returns at
 * once with a request, to be ended by quoit_request_free after it is done (freeing one that is not done lets it finish unattended;
 * its buffers must stay valid until then).
 *
 * For buffers on a device, which every operation takes, the operation is ordered on `stream`: it begins when what the stream holds is done, and
 * what is put on the stream later sees the result. It is *submitted* when the call returns, and the request is done when the result is there. A
 * barrier has no buffers: on a stream it is one of the ranks' streams. In one operation some ranks may have their buffers on a device, others not.
 */
typedef struct quoit_call {
    size_t struct_size;    /* fields may be added at the end */
    int timeout_ms;        /* from now; 0: the communicator's */
    quoit_device_t device; /* of all buffers of this call */
    void *stream;          /* of that device; ignored for the host */
    double factor[2];      /* premul_sum: this rank's factor, real and imaginary part */
    uint32_t flags;        /* QUOIT_CALL_... */
    /**
     * allreduce of float32, sum, in a communicator with a wire format; ignored by other operations. `count` elements of host memory that
     * receive what encoding on this rank took away from the result, so that the result and all ranks' residuals together are the sum.
     * Added to this rank's next input they make up for it (error feedback). NULL: not wanted. Infinities and NaN leave no residual.
     */
    float *residual;
} quoit_call_t;

/** The caller waits for the request at once: no other thread is woken to drive it meanwhile. */
#define QUOIT_CALL_ATTENDED 1u

#define QUOIT_CALL_INIT {sizeof(quoit_call_t), 0, QUOIT_DEVICE_HOST, NULL, {1.0, 0.0}, 0, NULL}

/** QUOIT_OK when done well, QUOIT_IN_PROGRESS, or the error it ended with. Works on what runs in this process, never blocks. */
QUOIT_API quoit_status_t quoit_request_test(quoit_request_t *request);
/** Works until done, but at most slice_ms (-1: until done or its deadline). QUOIT_IN_PROGRESS when the slice is over first. */
QUOIT_API quoit_status_t quoit_request_wait(quoit_request_t *request, int slice_ms);
/** Text of the error the request ended with, "" if none. Valid until it is freed. */
QUOIT_API const char *quoit_request_error(quoit_request_t *request);
/** recv: the rank it came from, and its elements. ERR_INVALID for other operations or one that is not done. */
QUOIT_API quoit_status_t quoit_request_source(quoit_request_t *request, int *source, size_t *count);
/** NULL is accepted. One that is not done goes on unattended. The communicator may have been destroyed, which has ended the request. */
QUOIT_API void quoit_request_free(quoit_request_t *request);

/* ---------------------------------------------------------------- collectives */

/** One rank's share in a v-form: parts may lie anywhere, also in allocations of their own. */
typedef struct quoit_part {
    void *data; /* may be NULL when count is 0 */
    size_t count;
} quoit_part_t;

/**
 * Sum, or reduce otherwise, `count` elements over all ranks; every rank receives the result, the same bits everywhere.
 *
 * @param send  `count` elements; may equal `recv` (in place), must not overlap it otherwise. Unchanged until the request is done.
 * @param recv  room for `count` elements. Its content is undefined when the request ends in an error.
 * @param count 0 is allowed and still matches the other ranks' call.
 * @param call  may be NULL: QUOIT_CALL_INIT.
 *
 * Cost: latency one flag exchange (small) or two inside a host; bytes over each host's NIC, per direction:
 * 2 (h-1)/h * count * width for h hosts (bandwidth-optimal: Patarasuk & Yuan, 2009).
 */
QUOIT_API quoit_status_t quoit_allreduce(quoit_comm_t *comm, const void *send, void *recv, size_t count, quoit_dtype_t dtype,
                                         quoit_op_t op, const quoit_call_t *call, quoit_request_t **request);
/** As allreduce, but only `root` receives. recv is ignored (may be NULL) elsewhere; nobody's send is changed, unless it is recv. */
QUOIT_API quoit_status_t quoit_reduce(quoit_comm_t *comm, const void *send, void *recv, size_t count, quoit_dtype_t dtype,
                                      quoit_op_t op, int root, const quoit_call_t *call, quoit_request_t **request);
/** `buffer` of root goes to all. */
QUOIT_API quoit_status_t quoit_broadcast(quoit_comm_t *comm, void *buffer, size_t count, quoit_dtype_t dtype, int root,
                                         const quoit_call_t *call, quoit_request_t **request);
/** recv: size * count elements, rank r's at r * count. send may be recv + rank * count (in place). */
QUOIT_API quoit_status_t quoit_allgather(quoit_comm_t *comm, const void *send, void *recv, size_t count, quoit_dtype_t dtype,
                                         const quoit_call_t *call, quoit_request_t **request);
/** recv: one part a rank, the same counts on all ranks; send holds recv[rank].count elements, and may be recv[rank].data. */
QUOIT_API quoit_status_t quoit_allgatherv(quoit_comm_t *comm, const void *send, const quoit_part_t *recv, quoit_dtype_t dtype,
                                          const quoit_call_t *call, quoit_request_t **request);
/** send: size * count elements; recv: count elements, the reduction of every rank's part number `rank`. */
QUOIT_API quoit_status_t quoit_reduce_scatter(quoit_comm_t *comm, const void *send, void *recv, size_t count, quoit_dtype_t dtype,
                                              quoit_op_t op, const quoit_call_t *call, quoit_request_t **request);
/** send: one part a rank, the same counts on all ranks; recv holds send[rank].count elements, and may be send[rank].data. */
QUOIT_API quoit_status_t quoit_reduce_scatterv(quoit_comm_t *comm, const quoit_part_t *send, void *recv, quoit_dtype_t dtype,
                                               quoit_op_t op, const quoit_call_t *call, quoit_request_t **request);
/** send and recv: size * count elements; part r of send goes to rank r. Not in place. */
QUOIT_API quoit_status_t quoit_alltoall(quoit_comm_t *comm, const void *send, void *recv, size_t count, quoit_dtype_t dtype,
                                        const quoit_call_t *call, quoit_request_t **request);
/** One part a rank in both; send[r].count here equals recv[here].count on rank r, else ERR_MISMATCH. */
QUOIT_API quoit_status_t quoit_alltoallv(quoit_comm_t *comm, const quoit_part_t *send, const quoit_part_t *recv,
                                         quoit_dtype_t dtype, const quoit_call_t *call, quoit_request_t **request);
/** recv (root only, else ignored): size * count elements. */
QUOIT_API quoit_status_t quoit_gather(quoit_comm_t *comm, const void *send, void *recv, size_t count, quoit_dtype_t dtype,
                                      int root, const quoit_call_t *call, quoit_request_t **request);
/** recv (root only, else ignored): one part a rank. */
QUOIT_API quoit_status_t quoit_gatherv(quoit_comm_t *comm, const void *send, size_t count, const quoit_part_t *recv,
                                       quoit_dtype_t dtype, int root, const quoit_call_t *call, quoit_request_t **request);
/** send (root only, else ignored): size * count elements. */
QUOIT_API quoit_status_t quoit_scatter(quoit_comm_t *comm, const void *send, void *recv, size_t count, quoit_dtype_t dtype,
                                       int root, const quoit_call_t *call, quoit_request_t **request);
/** send (root only, else ignored): one part a rank. */
QUOIT_API quoit_status_t quoit_scatterv(quoit_comm_t *comm, const quoit_part_t *send, void *recv, size_t count,
                                        quoit_dtype_t dtype, int root, const quoit_call_t *call, quoit_request_t **request);
/** Nobody's request is done before everybody has called. */
QUOIT_API quoit_status_t quoit_barrier(quoit_comm_t *comm, const quoit_call_t *call, quoit_request_t **request);

/* ---------------------------------------------------------------- point to point */

#define QUOIT_ANY_SOURCE (-1)

/**
 * Messages of one (sender, receiver, tag) arrive in the order sent; nothing is ordered against collectives. A rank may send to
 * itself. A send is done when its buffer may be used again. The receiver's count must equal the sender's, else ERR_MISMATCH.
 */
QUOIT_API quoit_status_t quoit_send(quoit_comm_t *comm, const void *buffer, size_t count, quoit_dtype_t dtype, int destination,
                                    uint32_t tag, const quoit_call_t *call, quoit_request_t **request);
/** source may be QUOIT_ANY_SOURCE. */
QUOIT_API quoit_status_t quoit_recv(quoit_comm_t *comm, void *buffer, size_t count, quoit_dtype_t dtype, int source, uint32_t tag,
                                    const quoit_call_t *call, quoit_request_t **request);

/* ---------------------------------------------------------------- benchmarking and inspection */

/** The plan that an allreduce of `count` elements would run, as text. `*text` is to be freed with free(). */
QUOIT_API quoit_status_t quoit_explain_allreduce(quoit_comm_t *comm, size_t count, quoit_dtype_t dtype, char **text);

#ifdef __cplusplus
}
#endif
#endif
