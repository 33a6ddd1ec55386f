/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A peer on the same host that knows the secret, and then lies: its info message, the descriptors that come with it, the header of its
 * memory, the positions and bytes of the rings, on both sides. A real transport listens; the peer is this file. Whatever it does, the
 * transport goes on, tells of the end with a text, and keeps no descriptor.
 */
#include "fuzz.h"

#include "transport/framing/handshake.h"
#include "transport/framing/ring.h"
#include "transport/registry.h"
#include "transport/shm/shm_header.h"
#include "transport/shm/shm_info.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

enum { JOB = 5, RING = 65536, HEADER = SHM_HEADER_SIZE + QUOIT_ROOT_SIZE, ARENA = HEADER + 65536 + RING + 4096, DESCRIPTORS = 4, ROUNDS = 60, PATCHES = 8 };
static const char secret[] = "a secret of this target";

typedef struct liar {
    int fd;
    quoit_process_id_t id;
    handshake_t handshake;
    uint8_t in[SHM_INFO_SIZE]; /* the transport's info */
    size_t in_length;
    int fds[DESCRIPTORS]; /* that came with it */
    int fd_count;
} liar_t;

static int bell, arena, unsealed, doorbell = -1;
static uint8_t *memory; /* the arena's */
static quoit_transport_t *transport;
static quoit_process_id_t own = {0x5155, 0x4f49};

static void on_log(int level, const char *room, const char *text) { (void)level, (void)room, (void)text; }
static void on_error(const char *text) { error_set(QUOIT_ERR_INTERNAL, "%s", text); }
static const char *on_setting(const char *name) { return strcmp(name, "ARENA_SIZE") == 0 ? "4M" : strcmp(name, "MAILBOX_SIZE") == 0 ? "16K" : NULL; }

static void open_transport(void)
{
    uint8_t address[QUOIT_ADDRESS_CAPACITY];
    size_t length = sizeof address;
    own.low = (uint64_t)getpid();
    if (doorbell < 0) doorbell = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    quoit_transport_environment_t environment = {.struct_size = sizeof environment, .self = own, .doorbell = doorbell,
                                                 .host = "here", .log = on_log, .setting = on_setting, .error = on_error};
    fuzz_check(doorbell >= 0 && transport_shm.open(&environment, &transport) == QUOIT_OK);
    fuzz_check(transport_shm.listen(transport, address, &length) == QUOIT_OK);
    fuzz_check(transport_shm.trust(transport, JOB, secret, sizeof secret) == QUOIT_OK);
}

static void make_memory(void)
{
    bell = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    arena = memfd_create("fuzz-arena", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    unsealed = memfd_create("fuzz-unsealed", MFD_CLOEXEC);
    fuzz_check(bell >= 0 && arena >= 0 && unsealed >= 0 && ftruncate(arena, ARENA) == 0 && ftruncate(unsealed, ARENA) == 0);
    fuzz_check(fcntl(arena, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) == 0);
    memory = mmap(NULL, ARENA, PROT_READ | PROT_WRITE, MAP_SHARED, arena, 0);
    fuzz_check(memory != MAP_FAILED);
}

/* One round of the transport; its events have what events have. */
static void pump(void)
{
    quoit_event_t event;
    for (int i = 0; i < 2; i++) {
        transport_shm.disarm(transport); /* makes progress look at its descriptors */
        transport_shm.progress(transport);
    }
    while (transport_shm.next_event(transport, &event)) {
        if (event.type == QUOIT_EVENT_NOTICE) fuzz_check(event.length == 0 || event.data);
        if (event.type == QUOIT_EVENT_CLOSED) fuzz_check(event.status == QUOIT_OK || (event.text && event.text[0]));
    }
}

static bool dial(liar_t *liar)
{
    struct sockaddr_un name = {.sun_family = AF_UNIX};
    shm_address_name(own, name.sun_path + 1);
    liar->fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    fuzz_check(liar->fd >= 0);
    if (connect(liar->fd, (struct sockaddr *)&name, (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + strlen(name.sun_path + 1))) != 0) return false;
    fuzz_check(handshake_connect(&liar->handshake, JOB, liar->id, own, 1, 0, secret, sizeof secret) == QUOIT_OK);
    for (int round = 0; round < ROUNDS && liar->handshake.state == HANDSHAKE_RUNNING; round++) {
        uint8_t bytes[HANDSHAKE_CAPACITY];
        size_t length;
        const void *out = handshake_output(&liar->handshake, &length);
        if (length > 0 && send(liar->fd, out, length, MSG_NOSIGNAL) == (ssize_t)length) handshake_sent(&liar->handshake, length);
        pump();
        ssize_t got = recv(liar->fd, bytes, handshake_wants(&liar->handshake), MSG_DONTWAIT);
        if (got > 0) handshake_received(&liar->handshake, bytes, (size_t)got);
    }
    return liar->handshake.state == HANDSHAKE_DONE;
}

static void tell(liar_t *liar, const uint8_t *info, size_t length, const int *fds, int count)
{
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(DESCRIPTORS * sizeof(int))];
    } control;
    struct iovec piece = {(void *)(uintptr_t)info, length};
    struct msghdr message = {.msg_iov = &piece, .msg_iovlen = 1};
    memset(&control, 0, sizeof control);
    if (count > 0) {
        message.msg_control = control.bytes;
        message.msg_controllen = CMSG_SPACE((size_t)count * sizeof(int));
        struct cmsghdr *header = CMSG_FIRSTHDR(&message);
        header->cmsg_level = SOL_SOCKET;
        header->cmsg_type = SCM_RIGHTS;
        header->cmsg_len = CMSG_LEN((size_t)count * sizeof(int));
        memcpy(CMSG_DATA(header), fds, (size_t)count * sizeof(int));
    }
    (void)sendmsg(liar->fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
}

/* What the transport tells: its arena is where its mailbox for us lies. */
static void listen_to_it(liar_t *liar)
{
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(DESCRIPTORS * sizeof(int))];
    } control;
    struct iovec piece = {liar->in, sizeof liar->in};
    struct msghdr message = {.msg_iov = &piece, .msg_iovlen = 1, .msg_control = control.bytes, .msg_controllen = sizeof control.bytes};
    ssize_t got = recvmsg(liar->fd, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    liar->in_length = got > 0 ? (size_t)got : 0;
    for (struct cmsghdr *header = got > 0 ? CMSG_FIRSTHDR(&message) : NULL; header; header = CMSG_NXTHDR(&message, header)) {
        if (header->cmsg_type != SCM_RIGHTS) continue;
        int count = (int)((header->cmsg_len - CMSG_LEN(0)) / sizeof(int));
        for (int i = 0; i < count && liar->fd_count < DESCRIPTORS; i++) memcpy(&liar->fds[liar->fd_count++], CMSG_DATA(header) + (size_t)i * sizeof(int), sizeof(int));
    }
}

/* Write into the ring that the transport reads, as the peer may: positions and bytes. */
static void write_mailbox(liar_t *liar, fuzz_input_t *input)
{
    shm_info_t info;
    if (liar->in_length != SHM_INFO_SIZE || liar->fd_count < 1 || shm_info_parse(liar->in, &info) != QUOIT_OK) return;
    uint8_t *base = mmap(NULL, info.arena_size, PROT_READ | PROT_WRITE, MAP_SHARED, liar->fds[0], 0);
    if (base == MAP_FAILED) return;
    ring_memory_t *ring = (ring_memory_t *)(base + info.mailbox_offset);
    for (int i = 0; i < PATCHES && fuzz_left(input) > 0; i++) {
        size_t length;
        uint8_t what = fuzz_byte(input);
        const uint8_t *bytes = fuzz_take(input, fuzz_byte(input), &length);
        uint64_t written = atomic_load(&ring->written);
        for (size_t at = 0; at < length; at++) ring->bytes[(written + at) & (info.mailbox_capacity - 1)] = bytes[at];
        atomic_store(&ring->written, what < 200 ? written + length : fuzz_number(input, 8));
        if (what & 1) atomic_store(&((ring_memory_t *)(memory + HEADER))->read, fuzz_number(input, 8));
        __atomic_store_n(&((shm_header_t *)base)->mail[info.slot], 1, __ATOMIC_RELEASE);
        pump();
    }
    munmap(base, info.arena_size);
}

static void lie(liar_t *liar, fuzz_input_t *input)
{
    uint8_t bytes[SHM_INFO_SIZE + 64] = {0}, flags = fuzz_byte(input);
    shm_header_t *header = (shm_header_t *)memory;
    shm_info_t info = {liar->id, {8192, 1 << 20, 256 << 10}, ARENA, HEADER, RING, 0, (uint32_t)getpid(), 2};
    int fds[DESCRIPTORS] = {flags & 1 ? unsealed : arena, flags & 2 ? arena : bell, bell, arena}, count = flags >> 2 & 7;
    memset(memory, 0, SHM_HEADER_SIZE);
    memset(memory + HEADER, 0, sizeof(ring_memory_t));
    *header = (shm_header_t){.magic = SHM_HEADER_MAGIC, .size = ARENA, .process = liar->id, .version = SHM_HEADER_VERSION, .pid = (uint32_t)getpid()};
    if (count == 0) count = 2;
    if (count == 7) count = 0;
    if (count > DESCRIPTORS) count = DESCRIPTORS;
    info.descriptors = (uint32_t)count;
    shm_info_write(&info, bytes);
    if (flags & 32) fuzz_patch(input, bytes, SHM_INFO_SIZE, fuzz_byte(input) % PATCHES);
    if (flags & 64) fuzz_patch(input, memory, 64, fuzz_byte(input) % PATCHES);
    size_t length = flags & 128 ? fuzz_byte(input) % sizeof bytes : SHM_INFO_SIZE;
    tell(liar, bytes, length, fds, count);
    for (int i = 0; i < 3; i++) pump();
    listen_to_it(liar);
    write_mailbox(liar, input);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static uint64_t number;
    fuzz_input_t input = fuzz_input(data, size);
    if (!transport) {
        open_transport();
        make_memory();
        (void)fuzz_descriptors_are_back();
    }
    liar_t liar = {.id = {77, ++number}};
    fuzz_check(dial(&liar));
    lie(&liar, &input);
    for (int i = 0; i < liar.fd_count; i++) close(liar.fds[i]);
    close(liar.fd);
    for (int i = 0; i < 10 && !fuzz_descriptors_are_back(); i++) pump();
    /* A message that nobody has asked for yet outlives its sender's goodbye, and a peer whose socket has ended is doubted for a while. */
    if (!fuzz_descriptors_are_back()) {
        transport_shm.close(transport);
        open_transport();
    }
    fuzz_check(fuzz_descriptors_are_back());
    return 0;
}

void fuzz_seeds(void)
{
    frame_t frame = {.type = FRAME_NOTICE, .total = 5, .length = 5}, bye = {.type = FRAME_BYE};
    uint8_t seed[4 + 2 * FRAME_HEADER_SIZE + 5] = {8, 0, 2 * FRAME_HEADER_SIZE + 5};
    frame_write(&frame, seed + 3);
    memcpy(seed + 3 + FRAME_HEADER_SIZE, "hello", 5);
    frame_write(&bye, seed + 3 + FRAME_HEADER_SIZE + 5);
    fuzz_seed("sound", "\10", 1);
    fuzz_seed("notice_and_goodbye", seed, 3 + 2 * FRAME_HEADER_SIZE + 5);
    fuzz_seed("bad_frame", "\10\0\100Qabcdefghijklmnopqrstuvwxyzabcdefghijklmnopqrstuvwxyzabcdefghij", 67);
    fuzz_seed("impossible_position", "\10\310\0\377\377\377\377\0\0\0\0", 11);
    fuzz_seed("unsealed", "\11", 1);
    fuzz_seed("no_doorbell", "\12", 1);
    fuzz_seed("too_many_descriptors", "\20", 1);
    fuzz_seed("no_descriptors", "\34", 1);
    fuzz_seed("info_patched", "\50\1\50\0\1\377", 6);
    fuzz_seed("header_patched", "\110\1\0\0\1\377", 6);
    fuzz_seed("half_an_info", "\210\60", 2);
}
