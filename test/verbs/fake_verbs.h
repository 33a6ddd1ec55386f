/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A libibverbs of the tests' own: the shared object libibverbs.so.1 in the build folder, with one device (fake0), or more, whose network is
 * datagrams between processes of this machine (and within one). RC queue pairs with SEND and RDMA WRITE, with and without immediate,
 * memory keys that are checked, completion channels, asynchronous events, retries that end. It is strict where devices are: a write after
 * the queue pair was reset goes nowhere, RESET takes the queue pair's completions with it,
 * destroying it leaves them (devices do either), keys of unregistered memory are refused.
 *
 *   fake_verbs.c       objects, the functions of libibverbs       fake_devices.c   devices, and what befalls them
 *   fake_network.c     the network and its thread
 *
 * A test finds the functions below with dlsym in the object that the library under test has opened. All are for this process.
 */
#ifndef QUOIT_TEST_FAKE_VERBS_H
#define QUOIT_TEST_FAKE_VERBS_H

#ifdef __cplusplus
extern "C" {
#endif

/** Forget all orders below, and set the counters back. */
void fake_verbs_calm(void);
/** The n-th call (from 1, counted from now) of a function, named without ibv_, fails with this errno. */
void fake_verbs_fail_call(const char *name, unsigned n, int error);
/** The next n posted sends and writes are refused, because the queue is full. */
void fake_verbs_fill(unsigned n);
/** The n-th "send" or "write" from now ends in this completion status, and its queue pair with it; the peer sees nothing of it. */
void fake_verbs_fail_work(const char *name, unsigned n, int status);
/** Every packet is handled up to so many microseconds late. */
void fake_verbs_delay(unsigned microseconds);
/** No packet leaves or is taken any more. */
void fake_verbs_cut(int cut);
/** All open devices report IBV_EVENT_DEVICE_FATAL. */
void fake_verbs_break_device(void);
/** The device is taken out: an event FATAL, no completions any more, calls that make or change something fail with EIO, and it is not listed. */
void fake_verbs_remove_device(void);
/** No more bytes than these can be registered at a time (ENOMEM); 0: any number. */
void fake_verbs_lock_limit(unsigned long bytes);
/** No device registers a dma-buf (EOPNOTSUPP). */
void fake_verbs_no_dmabuf(int none);
/** How many devices there are from now on, 1 to 4 (fake0 of 2.5 Gb/s, fake1 of 10, fake2 and fake3 of 2.5); also FAKE_VERBS_DEVICES. */
void fake_verbs_devices(int count);
/** Where sysfs is; "": nowhere. Devices lie in `root`/class/infiniband. Also FAKE_VERBS_SYSFS. */
void fake_verbs_sysfs(const char *root);
/**
 * What befalls a device when `after` more packets of it have gone (0: at once): "cut" no packet leaves or comes in any more; "port" the same, and
 * the event PORT_ERR; "fatal" the event DEVICE_FATAL; "removed" all of remove_device, for this one.
 */
void fake_verbs_harm(int device, const char *what, unsigned after);
/** Bytes of sends and writes of a device that arrived. */
unsigned long fake_verbs_bytes(int device);
/** ibv_destroy_qp does not return before it is let go again, by 0 or calm; two minutes at most. */
void fake_verbs_hold_destroy(int held);
/** Is nothing of this process's under way? */
int fake_verbs_is_quiet(void);
/**
 * "context", "pd", "mr", "cq", "qp", "channel": how many there are; "dmabuf": of the "mr", those of a dma-buf; "registered": bytes of the "mr". "rnr": receivers that were not ready; "overflow": completion queues
 * that overflowed; "misuse": rules of the interface that were broken; "writes", "sends": done; "refused": writes refused for their key.
 * A function's name: calls since fake_verbs_calm. "signalled", "inlined": of those of post_send. "pkey_index", "service_level", "traffic_class", "timeout",
 * "retry_count": what the newest queue pair was told to use.
 */
unsigned long fake_verbs_count(const char *name);

#ifdef __cplusplus
}
#endif
#endif
