/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The process group that PyTorch sees.
 *
 * A collective's way: Launch checks tensors and lays their memory out (tensors.h), issues one or more calls of the library, and
 * ends as a QuoitWork, or, when the caller wants to block, is worked off on the caller's own thread.
 */
#pragma once

#include <atomic>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "communicator.h"
#include "extra_time.h"
#include "torch_version.h"
#include "work.h"

namespace quoit_torch {

class Launch;
class MonitoredBarrier;

class ProcessGroupQuoit : public c10d::Backend {
public:
    struct Options : c10d::Backend::Options {
        explicit Options(std::optional<std::chrono::milliseconds> timeout = std::nullopt);
        c10::intrusive_ptr<c10d::Backend::Options> clone() const QUOIT_OVERRIDE_2_14 { return c10::make_intrusive<Options>(*this); }
        quoit_wire_t wire = QUOIT_WIRE_DEFAULT; /* what sums of floats are between hosts */
        bool timeout_given; /* it wins over the timeout of init_process_group and new_group then */
        int sockets = 0;    /* TCP connections a pair of processes: see wish_sockets(); 0: no wish */
    };

    /** The default group blocks until all ranks have come; other groups of a quoit default group never block. */
    static c10::intrusive_ptr<ProcessGroupQuoit> create(const c10d::DistributedBackendOptions &backend,
                                                        const c10::intrusive_ptr<c10d::Backend::Options> &options);
    /** A group by itself, which torch.distributed does not know of; blocks until all ranks have come to `store`. */
    static c10::intrusive_ptr<ProcessGroupQuoit> connect(c10::intrusive_ptr<c10d::Store> store, int rank, int size,
                                                         std::chrono::milliseconds timeout);
    ProcessGroupQuoit(int rank, int size, c10::intrusive_ptr<c10d::Store> store, std::string id,
                      c10::intrusive_ptr<Options> options);
    ~ProcessGroupQuoit() override;

    const std::string getBackendName() const override { return "quoit"; }
    /** A copy: whoever splits the group writes the new group's name and timeout into what it gets. */
    c10::intrusive_ptr<c10d::Backend::Options> getBackendOptions() override { return options_->clone(); }
    void setTimeout(std::chrono::milliseconds timeout) override;
    void addEphemeralTimeout(const std::chrono::milliseconds &timeout) QUOIT_OVERRIDE_2_14 { extra_time_.grant(timeout); }
    c10d::ErrorType getError() override;
    void abort() override;
    void shutdown() override;

    /** What the group is and how its ranks are joined, as text or JSON. */
    std::string describe(bool json);
    /** Its newest operations, what runs and whom it waits for; also after a failure. */
    std::string history(bool json);
    /** Text of the first error of the group; "" when there was none. */
    std::string lastError();

    bool supportsSplitting() const override { return true; }
    c10::intrusive_ptr<c10d::Backend> split(const c10::intrusive_ptr<c10d::Store> &store, const std::vector<int> &ranks,
                                            const c10::intrusive_ptr<c10d::Backend::Options> &options) override;

    /** A group of the ranks that meet in `store`, whatever groups they come from. */
    c10::intrusive_ptr<c10d::Backend> merge(const c10::intrusive_ptr<c10d::Store> &store,
                                            const c10::intrusive_ptr<c10d::Backend::Options> &options, const int &rank,
                                            const int &size) override;

    /** Tensors of the CPU in memory that the ranks of this host read where it lies; ordinary memory where there is none to share. */
    at::Tensor allocateTensor(long size, at::TensorOptions options = {}) override;
    bool supportsTensorAlloc(c10::DeviceIndex device) override { return device < 0; } /* a CPU has no index */

    /** `hook` is told of each operation's end by whichever thread ended it. One a group. */
    void registerOnCompletionHook(std::function<void(std::shared_ptr<c10d::WorkInfo>)> &&hook) override;
    /** Until all operations begun so far have ended, and the hook was told of them. */
    void waitForPendingWorks() override;
    void enableCollectivesTiming() override {} /* Work::getDuration always knows */

    /**
     * The group of those that are left after this one has failed; its ranks agree on them, within `timeout` (the group's, if none).
     * `members` receives their ranks in this group, ascending. A default group's successor is the one that sub-groups are cut from.
     */
    c10::intrusive_ptr<ProcessGroupQuoit> survivors(std::optional<std::chrono::milliseconds> timeout, std::vector<int> &members);

    /*
     * start and end are there for whoever calls them. batch_isend_irecv asks first, and does better one by one: it bundles in a list that
     * PyTorch keeps for the group, where an operation that raises, or a second thread, leaves what swallows later collectives in silence.
     */
    bool supportsCoalescing() const override { return false; }
    void startCoalescing() override;
    c10::intrusive_ptr<c10d::Work> endCoalescing() override;

    void setSequenceNumberForGroup() override {} /* counted from the start on every rank */
    uint64_t getSequenceNumberForGroup() override { return sequence_.load(); }

    using Tensors = std::vector<at::Tensor>;
    using TensorLists = std::vector<std::vector<at::Tensor>>;
    using WorkPtr = c10::intrusive_ptr<c10d::Work>;

    WorkPtr broadcast(Tensors &tensors, const c10d::BroadcastOptions &opts = {}) override;
    WorkPtr allreduce(Tensors &tensors, const c10d::AllreduceOptions &opts = {}) override;
    /** Sum of float32; `residual` receives what a wire format took away here: see quoit_call_t. */
    WorkPtr allreduceResidual(at::Tensor &tensor, at::Tensor &residual);
    WorkPtr allreduce_sparse(Tensors &tensors, const c10d::AllreduceOptions &opts = {}) override;
    WorkPtr allreduce_coalesced(Tensors &tensors, const c10d::AllreduceCoalescedOptions &opts = {}) override;
    WorkPtr reduce(Tensors &tensors, const c10d::ReduceOptions &opts = {}) override;
    WorkPtr allgather(TensorLists &outputs, Tensors &inputs, const c10d::AllgatherOptions &opts = {}) override;
    WorkPtr _allgather_base(at::Tensor &output, at::Tensor &input, const c10d::AllgatherOptions &opts = {}) override;
    WorkPtr allgather_coalesced(TensorLists &outputs, Tensors &inputs, const c10d::AllgatherOptions &opts = {}) override;
    WorkPtr allgather_into_tensor_coalesced(Tensors &outputs, Tensors &inputs, const c10d::AllgatherOptions &opts = {}) override;
    WorkPtr gather(TensorLists &outputs, Tensors &inputs, const c10d::GatherOptions &opts = {}) override;
    WorkPtr gather_single(at::Tensor &output, at::Tensor &input, const c10d::GatherOptions &opts = {}) QUOIT_OVERRIDE_2_14;
    WorkPtr scatter(Tensors &outputs, TensorLists &inputs, const c10d::ScatterOptions &opts = {}) override;
    WorkPtr reduce_scatter(Tensors &outputs, TensorLists &inputs, const c10d::ReduceScatterOptions &opts = {}) override;
    WorkPtr _reduce_scatter_base(at::Tensor &output, at::Tensor &input, const c10d::ReduceScatterOptions &opts = {}) override;
    WorkPtr reduce_scatter_tensor_coalesced(Tensors &outputs, Tensors &inputs, const c10d::ReduceScatterOptions &opts = {}) override;
    WorkPtr alltoall_base(at::Tensor &output, at::Tensor &input, std::vector<int64_t> &output_splits,
                          std::vector<int64_t> &input_splits, const c10d::AllToAllOptions &opts = {}) override;
    WorkPtr alltoall(Tensors &outputs, Tensors &inputs, const c10d::AllToAllOptions &opts = {}) override;
    WorkPtr barrier(const c10d::BarrierOptions &opts = {}) override;
    void monitoredBarrier(const c10d::BarrierOptions &opts = {}, bool wait_all_ranks = false) override;

    WorkPtr send(Tensors &tensors, int destination, int tag) override;
    WorkPtr recv(Tensors &tensors, int source, int tag) override;
    WorkPtr recvAnysource(Tensors &tensors, int tag) override;

private:
    std::string report(const char *what, bool json, quoit_status_t (*call)(quoit_comm_t *, quoit_format_t, char **));
    friend class Launch;

    WorkPtr receive(const Operation &operation, Tensors &tensors, int source, int tag);
    c10::intrusive_ptr<Communicator> communicator();
    c10::intrusive_ptr<Communicator> peek() const;
    void adoptParent(const c10::intrusive_ptr<Communicator> &parent, const std::vector<int> &ranks);
    void meet();
    quoit_comm_config_t config() const;
    void openBatch();
    c10::intrusive_ptr<QuoitWork> batch();
    void follow(const c10::intrusive_ptr<QuoitWork> &work);
    std::string description() const;

    const c10::intrusive_ptr<c10d::Store> store_;
    const std::string id_;
    const c10::intrusive_ptr<Options> options_;
    std::atomic<uint64_t> sequence_{0};
    std::atomic<int> splits_{0};
    std::atomic<bool> ready_{false};
    std::atomic<bool> closed_{false};
    mutable std::mutex mutex_;                   /* guards comm_ until ready_ */
    c10::intrusive_ptr<Communicator> comm_;
    c10::intrusive_ptr<QuoitWork> batch_;        /* operations being coalesced, by batch_thread_ alone */
    std::atomic<std::thread::id> batch_thread_{};
    std::unique_ptr<MonitoredBarrier> monitored_;
    ExtraTime extra_time_;
    std::shared_ptr<CompletionHook> hook_;       /* what onCompletionHook_ calls; set once */
};

/** Shut down all groups of the process and stop the watching threads: for the interpreter's end. */
void shutdown_all();

} // namespace quoit_torch
