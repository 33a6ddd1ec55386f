/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Life of a process group: how it comes to its communicator, what it says of itself, its end. The operations are in
 * collectives.cpp and point_to_point.cpp.
 */
#include "backend.h"

#include <algorithm>
#include <functional>
#include <map>

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <c10/util/Exception.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include "errors.h"
#include "interpreter.h"
#include "launch.h"
#include "monitored.h"
#include "store.h"
#include "watcher.h"

namespace quoit_torch {
namespace {

using std::chrono::milliseconds;

constexpr Operation kCoalesced = {c10d::OpType::COALESCED, "coalesced operations", "quoit:coalesced"};

/** The process's groups and the communicator of its default group, from which sub-groups are cut. Never freed. */
struct Groups {
    std::mutex mutex;
    std::vector<ProcessGroupQuoit *> all; /* in order of creation */
    c10::weak_intrusive_ptr<Communicator> parent{c10::intrusive_ptr<Communicator>()};
    std::map<std::vector<int64_t>, int> made; /* by members: how many groups of the parent have been named after them */
};

Groups &groups()
{
    static Groups *const instance = new Groups;
    return *instance;
}

c10::intrusive_ptr<Communicator> parent_communicator()
{
    std::lock_guard<std::mutex> lock(groups().mutex);
    c10::intrusive_ptr<Communicator> parent = groups().parent.lock();
    return parent && parent->is_open() && !parent->is_inherited() ? parent : nullptr;
}

/**
 * The name by which members find each other. new_group(..., use_local_synchronization=True) hashes one from the members and the number of
 * all groups that the process has, in which members may differ. Which of the groups of just these members it is they have in common.
 */
std::string common_name(const std::string &name, const std::vector<int64_t> &members)
{
    constexpr size_t kHashLength = 40, kLongest = 60;
    if (name.size() != kHashLength || name.find_first_not_of("0123456789abcdef") != std::string::npos)
        return name;
    std::lock_guard<std::mutex> lock(groups().mutex);
    const std::string number = " #" + std::to_string(++groups().made[members]);
    std::string text = "ranks";
    for (const int64_t rank : members)
        text += " " + std::to_string(rank);
    if (text.size() > kLongest)
        text = std::to_string(members.size()) + " ranks " + std::to_string(std::hash<std::string>()(text));
    return text + number;
}

/**
 * Connections belong to pairs of processes and are shared by their groups, so the first group of the process that is made decides how
 * many TCP connections a pair has. A later group that wishes another number is told so, once.
 */
void wish_sockets(int sockets)
{
    static std::once_flag told;
    const std::string wanted = std::to_string(sockets);
    const char *current = nullptr;
    if (!sockets || quoit_setting_set("TCP_SOCKETS", wanted.c_str()) == QUOIT_OK)
        return;
    const std::string why = quoit_last_error();
    TORCH_CHECK_VALUE(quoit_setting_get("TCP_SOCKETS", &current) == QUOIT_OK, "quoit: ", why);
    if (wanted != current) {
        std::call_once(told, [&] {
            TORCH_WARN("quoit: sockets=", wanted, " changes nothing any more: pairs of processes have ", current,
                       " TCP connections, as decided by the first group of this process");
        });
    }
}

/** A group's limit in whole milliseconds, one at least. No time at all, or less, is a mistake. */
milliseconds checked_limit(std::chrono::duration<double> limit, const std::string &place)
{
    constexpr std::chrono::duration<double> kForever = std::chrono::years(1000);
    if (limit < -kForever)
        limit = kForever; /* timedelta.max: the conversion from Python has overflowed */
    TORCH_CHECK_VALUE(limit.count() > 0, "quoit: ", place, ": a timeout of ", limit.count(),
                      " s is over before anything can happen; leave it out for PyTorch's default");
    return std::max(milliseconds(1), std::chrono::round<milliseconds>(limit));
}

} // namespace

ProcessGroupQuoit::Options::Options(std::optional<milliseconds> timeout)
    : c10d::Backend::Options("quoit", timeout.value_or(kBackendDefaultTimeout)), timeout_given(timeout.has_value())
{
}

/* ---------------------------------------------------------------- creation */

c10::intrusive_ptr<ProcessGroupQuoit> ProcessGroupQuoit::create(const c10d::DistributedBackendOptions &backend,
                                                                const c10::intrusive_ptr<c10d::Backend::Options> &options)
{
    WithoutGil nogil;
    auto own = c10::make_intrusive<Options>();
    if (const auto *given = dynamic_cast<const Options *>(options.get())) {
        own->timeout = given->timeout;
        own->timeout_given = given->timeout_given;
        own->wire = given->wire;
        own->sockets = given->sockets;
        wish_sockets(own->sockets);
    }
    const bool is_default = backend.global_ranks_in_group.empty();
    const std::string id = is_default ? "world" : common_name(backend.group_id, backend.global_ranks_in_group);
    if (own->timeout_given)
        own->timeout = checked_limit(own->timeout, "creating group " + id);
    else
        own->timeout = checked_limit(backend.timeout, "creating group " + id);
    own->group_name = backend.group_id;
    for (int64_t rank : backend.global_ranks_in_group)
        own->global_ranks_in_group.push_back(static_cast<uint64_t>(rank));

    auto group = c10::make_intrusive<ProcessGroupQuoit>(backend.group_rank, backend.group_size, backend.store, id, own);
    if (is_default) {
        group->meet();
        std::lock_guard<std::mutex> lock(groups().mutex);
        groups().parent = c10::weak_intrusive_ptr<Communicator>(group->comm_);
        groups().made.clear();
    } else if (const c10::intrusive_ptr<Communicator> parent = parent_communicator()) {
        group->adoptParent(parent, std::vector<int>(backend.global_ranks_in_group.begin(), backend.global_ranks_in_group.end()));
    }
    /* Else the default group is another backend's: the ranks meet in the store at the first operation. */
    return group;
}

c10::intrusive_ptr<ProcessGroupQuoit> ProcessGroupQuoit::connect(c10::intrusive_ptr<c10d::Store> store, int rank, int size,
                                                                 milliseconds timeout)
{
    WithoutGil nogil;
    const std::string id = "standalone";
    TORCH_CHECK_VALUE(store, "quoit: creating group ", id, ": there is no store");
    auto own = c10::make_intrusive<Options>(checked_limit(timeout, "creating group " + id));
    own->group_name = id;
    auto group = c10::make_intrusive<ProcessGroupQuoit>(rank, size, std::move(store), id, own);
    group->meet();
    return group;
}

ProcessGroupQuoit::ProcessGroupQuoit(int rank, int size, c10::intrusive_ptr<c10d::Store> store, std::string id,
                                     c10::intrusive_ptr<Options> options)
    : Backend(rank, size), store_(std::move(store)), id_(std::move(id)), options_(std::move(options))
{
    std::lock_guard<std::mutex> lock(groups().mutex);
    groups().all.push_back(this);
}

ProcessGroupQuoit::~ProcessGroupQuoit()
{
    WithoutGil nogil;
    {
        std::lock_guard<std::mutex> lock(groups().mutex);
        std::erase(groups().all, this);
    }
    shutdown();
}

quoit_comm_config_t ProcessGroupQuoit::config() const
{
    quoit_comm_config_t config = QUOIT_COMM_CONFIG_INIT;
    config.name = id_.c_str();
    config.timeout_ms = to_timeout_ms(options_->timeout);
    config.wire = options_->wire;
    return config;
}

/** Create the communicator through the store; blocks until all ranks have come. */
void ProcessGroupQuoit::meet()
{
    StoreAdapter adapter(store_, size_);
    const quoit_comm_config_t parameters = config();
    quoit_comm_t *raw = nullptr;
    const quoit_status_t status = quoit_comm_create(adapter.get(), rank_, size_, &parameters, &raw);
    if (status != QUOIT_OK) {
        adapter.rethrow_interrupt();
        std::string text = quoit_last_error();
        if (!adapter.error().empty())
            text += " (the store said: " + adapter.error() + "; the process that serves it, rank 0 or the launcher, may have ended)";
        throw_error(status, "creating group " + id_, text, Stage::kSetUp);
    }
    comm_ = c10::make_intrusive<Communicator>(raw);
    ready_.store(true, std::memory_order_release);
}

/** Cut the communicator from the parent's, without a word to the other ranks. `ranks` are ranks of the parent. */
void ProcessGroupQuoit::adoptParent(const c10::intrusive_ptr<Communicator> &parent, const std::vector<int> &ranks)
{
    Communicator::Use use(*parent, Communicator::Use::kNew);
    if (!use)
        throw_error(QUOIT_ERR_CLOSED, "creating group " + id_, "the group it is cut from was destroyed", Stage::kSetUp);
    const quoit_comm_config_t parameters = config();
    quoit_comm_t *raw = nullptr;
    check_call(quoit_comm_create_group(use.comm(), ranks.data(), static_cast<int>(ranks.size()), id_.c_str(), &parameters, &raw),
               "creating group " + id_, Stage::kSetUp);
    comm_ = c10::make_intrusive<Communicator>(raw);
    ready_.store(true, std::memory_order_release);
}

c10::intrusive_ptr<c10d::Backend> ProcessGroupQuoit::split(const c10::intrusive_ptr<c10d::Store> &store, const std::vector<int> &ranks,
                                                           const c10::intrusive_ptr<c10d::Backend::Options> &options)
{
    WithoutGil nogil;
    const int number = splits_++; /* the same on all ranks: each of them calls split() */
    const auto position = std::find(ranks.begin(), ranks.end(), rank_);
    if (position == ranks.end())
        return nullptr;
    auto own = c10::make_intrusive<Options>(options ? options->timeout : options_->timeout);
    if (options) {
        own->group_name = options->group_name;
        own->group_desc = options->group_desc;
    }
    if (const auto *given = dynamic_cast<const Options *>(options.get()))
        own->wire = given->wire;
    for (int rank : ranks) {
        const bool known = static_cast<size_t>(rank) < options_->global_ranks_in_group.size();
        own->global_ranks_in_group.push_back(known ? options_->global_ranks_in_group[rank] : static_cast<uint64_t>(rank));
    }
    auto group = c10::make_intrusive<ProcessGroupQuoit>(static_cast<int>(position - ranks.begin()), static_cast<int>(ranks.size()),
                                                        store, id_ + "/" + own->group_name + "." + std::to_string(number), own);
    group->adoptParent(communicator(), ranks);
    return group;
}

c10::intrusive_ptr<c10d::Backend> ProcessGroupQuoit::merge(const c10::intrusive_ptr<c10d::Store> &store,
                                                           const c10::intrusive_ptr<c10d::Backend::Options> &options, const int &rank,
                                                           const int &size)
{
    WithoutGil nogil;
    auto own = c10::make_intrusive<Options>(options ? options->timeout : options_->timeout);
    own->wire = options_->wire;
    own->group_name = options ? options->group_name : id_ + ":merge";
    if (options)
        own->group_desc = options->group_desc;
    /* PyTorch asks once for each device, with the same store, rank and size: each time it is another group. */
    const int64_t number = store->add("quoit/merge/" + own->group_name + "/" + std::to_string(rank), 1);
    const auto place = c10::make_intrusive<c10d::PrefixStore>("quoit/merge/" + own->group_name + "." + std::to_string(number), store);
    auto group = c10::make_intrusive<ProcessGroupQuoit>(rank, size, place, own->group_name, own);
    group->meet();
    return group;
}

/* ---------------------------------------------------------------- memory */

at::Tensor ProcessGroupQuoit::allocateTensor(long size, at::TensorOptions options)
{
    TORCH_CHECK_VALUE(size >= 0, "quoit: allocate_tensor of ", size, " elements");
    TORCH_CHECK_NOT_IMPLEMENTED(options.device().is_cpu(), "quoit: allocate_tensor is for the CPU, not for ", options.device());
    const size_t bytes = static_cast<size_t>(size) * options.dtype().itemsize();
    if (bytes == 0)
        return at::empty({size}, options);
    WithoutGil nogil;
    Communicator::Use use(*communicator(), Communicator::Use::kNew);
    use.demand("allocate_tensor");
    void *memory = nullptr;
    check_call(quoit_memory_alloc(use.comm(), bytes, &memory), "allocate_tensor");
    return at::from_blob(memory, {size}, quoit_memory_free, options);
}

c10::intrusive_ptr<ProcessGroupQuoit> ProcessGroupQuoit::survivors(std::optional<milliseconds> timeout, std::vector<int> &members)
{
    WithoutGil nogil;
    const c10::intrusive_ptr<Communicator> comm = communicator();
    Communicator::Use use(*comm, Communicator::Use::kNew);
    use.demand("shrink");
    quoit_comm_config_t parameters = config();
    parameters.name = nullptr; /* the library marks it as shrunk */
    parameters.timeout_ms = to_timeout_ms(timeout.value_or(options_->timeout));
    quoit_comm_t *raw = nullptr;
    check_call(quoit_comm_shrink(use.comm(), &parameters, &raw), "shrink");
    const auto smaller = c10::make_intrusive<Communicator>(raw);
    quoit_comm_set_timeout(raw, to_timeout_ms(options_->timeout));

    auto own = c10::make_intrusive<Options>(*options_);
    own->global_ranks_in_group.clear();
    for (int rank = 0, next = 0; rank < size_ && next < quoit_comm_size(raw); rank++) {
        if (quoit_comm_world_rank(use.comm(), rank) != quoit_comm_world_rank(raw, next))
            continue;
        next++;
        members.push_back(rank);
        if (static_cast<size_t>(rank) < options_->global_ranks_in_group.size())
            own->global_ranks_in_group.push_back(options_->global_ranks_in_group[rank]);
    }
    auto group = c10::make_intrusive<ProcessGroupQuoit>(quoit_comm_rank(raw), quoit_comm_size(raw), store_, id_, own);
    group->comm_ = smaller;
    group->ready_.store(true, std::memory_order_release);
    std::lock_guard<std::mutex> lock(groups().mutex);
    if (groups().parent.lock() == comm) {
        groups().parent = c10::weak_intrusive_ptr<Communicator>(smaller);
        groups().made.clear();
    }
    return group;
}

c10::intrusive_ptr<Communicator> ProcessGroupQuoit::peek() const
{
    std::lock_guard<std::mutex> lock(mutex_);
    return comm_;
}

c10::intrusive_ptr<Communicator> ProcessGroupQuoit::communicator()
{
    if (!ready_.load(std::memory_order_acquire)) {
        std::lock_guard<std::mutex> lock(mutex_);
        if (closed_.load())
            throw_error(QUOIT_ERR_CLOSED, "group " + id_, "the process group was destroyed");
        if (!comm_)
            meet();
    }
    return comm_;
}

/* ---------------------------------------------------------------- coalescing */

/*
 * All operations of the thread go into one Work until endCoalescing(). Receives and collectives start at once, sends at the end
 * or when somebody waits before. A group of operations that an exception left open is replaced by the next.
 */
void ProcessGroupQuoit::startCoalescing()
{
    WithoutGil nogil;
    openBatch();
    batch_thread_.store(std::this_thread::get_id());
}

void ProcessGroupQuoit::openBatch()
{
    const c10::intrusive_ptr<Communicator> comm = communicator();
    Flight flight;
    flight.comm = comm;
    flight.operation = kCoalesced.name;
    batch_ = c10::make_intrusive<QuoitWork>(rank_, kCoalesced, sequence_.load(), std::nullopt, Tensors(), std::move(flight));
    batch_->set_limit(options_->timeout);
    comm->track(batch_);
}

/** The Work that collects this thread's operations; null when they are not coalesced. */
c10::intrusive_ptr<QuoitWork> ProcessGroupQuoit::batch()
{
    if (batch_thread_.load(std::memory_order_relaxed) != std::this_thread::get_id())
        return nullptr;
    if (batch_->has_ended())
        openBatch(); /* somebody waited before the end: what comes now needs a new one */
    return batch_;
}

ProcessGroupQuoit::WorkPtr ProcessGroupQuoit::endCoalescing()
{
    WithoutGil nogil;
    c10::intrusive_ptr<QuoitWork> work = batch();
    TORCH_CHECK(work, "quoit: endCoalescing without startCoalescing in this thread");
    batch_thread_.store(std::thread::id());
    batch_.reset();
    follow(work);
    work->poke(0);
    return work;
}

/* ---------------------------------------------------------------- hooks */

void ProcessGroupQuoit::registerOnCompletionHook(std::function<void(std::shared_ptr<c10d::WorkInfo>)> &&hook)
{
    TORCH_CHECK(!hook_, "quoit: this group has an on-completion hook already, and can have one only");
    hook_ = std::make_shared<CompletionHook>();
    hook_->call = std::move(hook);
    onCompletionHook_ = [shared = hook_](std::shared_ptr<c10d::WorkInfo> info) { shared->call(std::move(info)); };
}

/** The communicator knows of the operation from here on; with a hook it is seen to its end even when nobody waits for it. */
void ProcessGroupQuoit::follow(const c10::intrusive_ptr<QuoitWork> &work)
{
    comm_->track(work);
    if (hook_) {
        work->set_hook(hook_);
        Watcher::get().watch(work);
    }
}

void ProcessGroupQuoit::waitForPendingWorks()
{
    WithoutGil nogil;
    const c10::intrusive_ptr<Communicator> comm = peek();
    if (!comm)
        return;
    constexpr int kSliceMs = 50; /* between two looks at the interpreter's signals */
    for (const c10::intrusive_ptr<QuoitWork> &work : comm->works()) {
        while (!work->poke(kSliceMs))
            check_signals();
    }
    while (hook_ && hook_->pending > 0) {
        std::this_thread::sleep_for(milliseconds(1)); /* another thread is in the hook */
        check_signals();
    }
}

/* ---------------------------------------------------------------- state */

/** What the user calls the group; "" when nobody called it anything: PyTorch has words of its own for that. */
std::string ProcessGroupQuoit::description() const
{
    const std::string &given = getGroupDesc().empty() ? options_->group_desc : getGroupDesc();
    return given == "undefined" || given == "default_pg" ? "" : given;
}

void ProcessGroupQuoit::setTimeout(milliseconds timeout)
{
    options_->timeout = checked_limit(timeout, "set_timeout");
    if (const c10::intrusive_ptr<Communicator> comm = peek()) {
        Communicator::Use use(*comm, Communicator::Use::kNew);
        if (use)
            check_call(quoit_comm_set_timeout(use.comm(), to_timeout_ms(options_->timeout)), "set_timeout");
    }
}

std::string ProcessGroupQuoit::lastError()
{
    const c10::intrusive_ptr<Communicator> comm = peek();
    if (!comm)
        return "";
    Communicator::Use use(*comm, Communicator::Use::kRunning);
    char text[4096] = "";
    if (use && quoit_comm_error(use.comm(), text, sizeof text) == QUOIT_OK)
        return "";
    return use ? for_python(text) : "the process group was destroyed";
}

c10d::ErrorType ProcessGroupQuoit::getError()
{
    const c10::intrusive_ptr<Communicator> comm = peek();
    if (!comm)
        return c10d::ErrorType::SUCCESS;
    Communicator::Use use(*comm, Communicator::Use::kRunning);
    switch (use ? quoit_comm_error(use.comm(), nullptr, 0) : QUOIT_ERR_CLOSED) {
    case QUOIT_OK:
        return c10d::ErrorType::SUCCESS;
    case QUOIT_ERR_TIMEOUT:
        return c10d::ErrorType::TIMEOUT;
    case QUOIT_ERR_PEER:
    case QUOIT_ERR_ABORTED:
        return c10d::ErrorType::REMOTE_ERROR;
    default:
        return c10d::ErrorType::COMM_ERROR;
    }
}

std::string ProcessGroupQuoit::report(const char *what, bool json, quoit_status_t (*call)(quoit_comm_t *, quoit_format_t, char **))
{
    WithoutGil nogil;
    const c10::intrusive_ptr<Communicator> comm = peek();
    if (!comm)
        return json ? "{}" : "group " + id_ + ": rank " + std::to_string(rank_) + " of " + std::to_string(size_) +
                                 ", not connected yet: its ranks meet at the first operation\n";
    Communicator::Use use(*comm, Communicator::Use::kRunning);
    use.demand(what);
    char *text = nullptr;
    check_call(call(use.comm(), json ? QUOIT_FORMAT_JSON : QUOIT_FORMAT_TEXT, &text), what);
    return take_text(text);
}

std::string ProcessGroupQuoit::describe(bool json) { return report("describe", json, quoit_comm_describe); }
std::string ProcessGroupQuoit::history(bool json) { return report("history", json, quoit_comm_history); }

void ProcessGroupQuoit::abort()
{
    WithoutGil nogil;
    if (const c10::intrusive_ptr<Communicator> comm = peek())
        comm->abort(c10::str("rank ", rank_, " of group ", id_, " aborted its process group"));
}

void ProcessGroupQuoit::shutdown()
{
    WithoutGil nogil;
    if (closed_.exchange(true))
        return;
    const c10::intrusive_ptr<Communicator> comm = peek();
    if (!comm || comm->is_inherited())
        return;
    if (monitored_ && monitored_->release())
        comm->abort(c10::str("rank ", rank_, " destroyed group ", id_, " after a monitored barrier that not all ranks reached"));
    comm->close();
}

void shutdown_all()
{
    WithoutGil nogil;
    Watcher::get().stop();
    std::vector<c10::intrusive_ptr<ProcessGroupQuoit>> open;
    {
        std::lock_guard<std::mutex> lock(groups().mutex);
        /* The newest first: sub-groups end before the group that they were cut from. */
        for (auto group = groups().all.rbegin(); group != groups().all.rend(); ++group) {
            if (c10::raw::intrusive_ptr::use_count(*group) > 0)
                open.push_back(c10::intrusive_ptr<ProcessGroupQuoit>::reclaim_copy(*group));
        }
    }
    for (const c10::intrusive_ptr<ProcessGroupQuoit> &group : open)
        group->shutdown();
}

} // namespace quoit_torch
