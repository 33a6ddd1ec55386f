// SPDX-License-Identifier: Apache-2.0
// One call of a collective with values known in advance: buffers between guards, the call, and what must be in them afterwards,
// computed naively from the inputs of all ranks. Values are small integers, exact in every dtype, so that any order of summation
// gives the same.
#pragma once

#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <vector>

extern "C" {
#include "quoit/quoit.h"
}

namespace comm_test {

enum class Collective {
    Allreduce, Reduce, Broadcast, Allgather, Allgatherv, ReduceScatter, ReduceScatterv, Alltoall, Alltoallv, Gather, Gatherv, Scatter,
    Scatterv, Barrier, Count
};
const char *name_of(Collective collective);
bool reduces(Collective collective);
bool is_rooted(Collective collective);
bool has_parts(Collective collective);

// Bytes from quoit_memory_alloc, or without a communicator from anywhere. Not a vector: one with an allocator of its own visits each byte.
class Room {
  public:
    Room() = default;
    Room(size_t size, unsigned char byte, quoit_comm_t *comm);
    Room(Room &&other) = default;
    Room &operator=(Room &&other) = default;
    Room copy() const;
    unsigned char *data() { return bytes_.get(); }

  private:
    struct Put {
        bool shared; // from quoit_memory_alloc
        void operator()(unsigned char *bytes) const;
    };
    std::unique_ptr<unsigned char[], Put> bytes_;
    size_t size_ = 0;
    quoit_comm_t *comm_ = nullptr;
};

// A rank's buffers are on a device: what an operation fills and checks is an image of them in the host's memory.
class Elsewhere {
  public:
    virtual ~Elsewhere() = default;
    virtual quoit_call_t call() = 0;                       // device and stream
    virtual void *put(const void *image, size_t bytes) = 0; // room on the device, the image on its way there; where it is
    virtual void fetch() = 0;                              // all of them set out back, behind what the stream holds
    virtual std::string take(size_t number, void *image, size_t bytes) = 0; // the one that was put as that number, from 0; "" or what went wrong
};

struct Case {
    Collective collective = Collective::Allreduce;
    quoit_dtype_t dtype = QUOIT_F32;
    quoit_op_t op = QUOIT_SUM;
    size_t count = 0;            // of the uniform forms
    std::vector<size_t> counts;  // of the v-forms: a rank's; alltoallv: [from * size + to]
    int root = 0;
    bool in_place = false;
    uint64_t values = 1;
    uint64_t shared = 0;         // bit r: rank r has its buffers in shared memory
    std::string describe() const;
};

// Counts for a v-form: uneven, some zero, none above `limit`.
std::vector<size_t> uneven_counts(std::mt19937_64 &random, Collective collective, int size, size_t limit);

class Operation {
  public:
    Operation(const Case &one, quoit_comm_t *comm, Elsewhere *elsewhere = nullptr);
    // NULL request: blocking.
    quoit_status_t issue(quoit_request_t **request, int timeout_ms = 0);
    // "" or what is wrong in the buffers, after a good end.
    std::string check();
    const Case &what() const { return case_; }
    std::vector<unsigned char> result() const; // bytes of the output

  private:
    struct Block {
        Room memory;
        size_t bytes = 0;
        unsigned char *at = nullptr; // where the call finds it
        unsigned char *data();
        const unsigned char *data() const { return const_cast<Block *>(this)->data(); }
        bool guards_hold() const;
        void make(size_t size, quoit_comm_t *comm);
    };
    using Bytes = std::vector<unsigned char>;
    using Known = std::shared_ptr<const Bytes>; // the same for all ranks: those that are threads work it out once
    Known input(int from, int part, size_t count) const;
    Known reduced(int part, size_t count) const;
    Bytes make_input(int from, int part, size_t count) const;
    Bytes make_reduced(int part, size_t count) const;
    size_t count_of(int rank) const;
    void lay_out();
    std::string compare(const Block &block, size_t at, const Known &known, const char *what, int part) const;
    void put();
    std::string take();
    std::string check_blocks();
    std::string check_inputs();

    Case case_;
    quoit_comm_t *comm_;
    Elsewhere *elsewhere_;
    int rank_, size_;
    size_t width_;
    double factor_[2] = {1, 0};
    bool in_place_;
    std::vector<Block> send_, recv_; // one, or one a part
    std::vector<quoit_part_t> send_parts_, recv_parts_;
    std::vector<Known> send_before_;
};

// Issue, wait and check; "" when all is well. On a device what comes out is fetched by the stream, before anybody waits for the request.
std::string perform(const Case &one, quoit_comm_t *comm, bool blocking, Elsewhere *elsewhere = nullptr);

} // namespace comm_test
