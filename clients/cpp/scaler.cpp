#include "scaler.hpp"

#include <sodium.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <atomic>
#include <mutex>
#include <thread>
#include <unordered_map>
#include <utility>

#include <capnp/compat/json.h>
#include <capnp/serialize.h>

#include "link.hpp"

namespace scaler {
namespace {

using Builder = capnp::MallocMessageBuilder;

constexpr size_t kInline = 16'384, kPart = 1 << 20, kWindow = 8, kMessageBytes = 1 << 20, kMessageTasks = 65'536, kMessageGroups = 256;
constexpr auto kRelease = std::chrono::milliseconds(50);
constexpr uint8_t kClient = 1, kJson = 1, kScheduler = 0, kStorage = 1;
enum Status : uint8_t { kValue, kRaised, kFailed, kCancelled };

kj::ArrayPtr<const kj::byte> bytes_of(std::string_view bytes) {
    return kj::arrayPtr(reinterpret_cast<const kj::byte*>(bytes.data()), bytes.size());
}

std::string text(capnp::Data::Reader bytes) { return {reinterpret_cast<const char*>(bytes.begin()), bytes.size()}; }

// The error in the payload of an outcome that is no value.
Error described(std::string_view payload) {
    capnp::MallocMessageBuilder builder;
    auto root = builder.initRoot<capnp::json::Value>();
    capnp::JsonCodec().decodeRaw(kj::arrayPtr(payload.data(), payload.size()), root);
    std::map<std::string, std::string> texts;
    const std::function<void(capnp::json::Value::Reader)> collect = [&](capnp::json::Value::Reader value) {
        for (auto field : value.getObject()) {
            if (field.getValue().isString()) texts.emplace(field.getName().cStr(), field.getValue().getString().cStr());
            else if (field.getValue().isObject()) collect(field.getValue());
        }
    };
    collect(root);
    return {texts["error"], texts["message"], texts["traceback"]};
}

}  // namespace

class Client::Core {
public:
    Core(const std::string& address, const Options& options)
        : options_(options), keys_(read_keys(options.keys)), session_(1 + randombytes_uniform(0x7ffffffe)),
          wake_(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)),
          scheduler_(context_, address, keys_, options.timeout,
              [this](Hello::Builder hello) {
                  char host[256] = {};
                  gethostname(host, sizeof host - 1);
                  hello.setRole(kClient);
                  hello.setService(kScheduler);
                  hello.setSession(session_);
                  hello.setName(options_.name);
                  hello.setHost(host);
              },
              {[this](Welcome::Reader welcome, bool resumed) { up(welcome, resumed); },
               [this](const std::string& reason) { end({"HandshakeRefusedError", reason}); },
               [this](const std::string& reason) { lost({"SchedulerLostError", reason}); },
               [this](Message::Reader message, std::string_view payload) { received(message, payload); }}) {
        auto connected = connected_.get_future();
        thread_ = std::thread([this] { run(); });
        try {
            connected.get();
        } catch (...) {
            close();
            throw;
        }
    }

    ~Core() { close(); }

    Call submit(const std::string& function, std::string arguments, const CallOptions& options) {
        if (function.find(':') == std::string::npos) throw Error("TypeError", "a function is named module:qualname, not " + function);
        auto task = std::make_shared<Task>();
        task->function = function_id(function);
        task->name = function;
        task->payload = std::move(arguments);
        task->group = group(task->function, options);
        Call call{0, task->promise.get_future().share()};
        {
            std::lock_guard lock(mutex_);
            if (ended_) throw *ended_;
            call.task_id = task->id = uint64_t{session_} << 32 | ++count_;
            commands_.push_back([this, task] { begin(task); });
        }
        wake();
        return call;
    }

    void cancel(uint64_t id) {
        {
            std::lock_guard lock(mutex_);
            commands_.push_back([this, id] { cancel_now(id); });
        }
        wake();
    }

private:
    struct Task {
        uint64_t id = 0;
        std::string function, name, group, payload;
        bool stored = false, submitted = false;
        std::promise<std::string> promise;
    };
    using TaskPointer = std::shared_ptr<Task>;

    // A transfer of an object: `next` bytes were sent or asked for, `done` have been answered.
    struct Transfer {
        std::string object, bytes;
        bool put = false;
        size_t next = 0, done = 0;
        uint64_t version = 0;
        std::function<void(std::string)> succeed;
        std::function<void(const Error&)> fail;
    };

    static std::string function_id(const std::string& name) {
        std::string id(16, '\0');
        const std::string hashed = '\1' + name;
        crypto_generichash(reinterpret_cast<unsigned char*>(id.data()), id.size(),
            reinterpret_cast<const unsigned char*>(hashed.data()), hashed.size(), nullptr, 0);
        return id;
    }

    static std::string group(const std::string& function, const CallOptions& options) {
        Builder builder;
        auto group = builder.initRoot<Group>();
        group.setFunction(bytes_of(function));
        group.setPriority(options.priority);
        group.setRetries(options.retries);
        group.setTimeoutSeconds(options.timeout_seconds);
        group.setEncoding(kJson);
        if (!options.capabilities.empty()) {
            auto names = group.initCapabilityNames(options.capabilities.size());
            auto values = group.initCapabilityValues(options.capabilities.size());
            unsigned at = 0;
            for (const auto& [name, value] : options.capabilities) {
                names.set(at, name);
                values.set(at++, value);
            }
        }
        const auto words = capnp::messageToFlatArray(builder);
        return text(words.asBytes());
    }

    void wake() {
        const uint64_t one = 1;
        [[maybe_unused]] const auto written = write(wake_, &one, sizeof one);
    }

    // --- the thread that owns the links ---------------------------------------------------------------------------

    void run() {
        while (!stop_) {
            std::vector<std::function<void()>> commands;
            {
                std::lock_guard lock(mutex_);
                commands.swap(commands_);
            }
            for (auto& command : commands) command();
            scheduler_.turn();
            if (storage_) storage_->turn();
            pump();
            release();
            std::vector<zmq::pollitem_t> items{{nullptr, wake_, ZMQ_POLLIN, 0}};
            scheduler_.add_to(items);
            if (storage_) storage_->add_to(items);
            zmq::poll(items, std::chrono::milliseconds(20));
            uint64_t woken;
            [[maybe_unused]] const auto got = read(wake_, &woken, sizeof woken);
        }
        for (auto at = tasks_.begin(); at != tasks_.end(); ++at) {
            if (at->second->submitted) cancel_at_scheduler(at->first);
        }
        end({"ClientQuitError", "this client is closed"});
        release(true);
        scheduler_.close();
        if (storage_) storage_->close();
    }

    void close() {
        stop_ = true;
        wake();
        if (thread_.joinable()) thread_.join();
        ::close(wake_);
    }

    void begin(const TaskPointer& task) {
        if (ended_) return fail(task, *ended_);
        tasks_[task->id] = task;
        if (task->payload.size() <= kInline) return queue_.push_back(task);
        put(task->payload, [this, task](std::string reference) {
            task->payload = std::move(reference);
            task->stored = true;
            if (tasks_.count(task->id)) queue_.push_back(task);
            else remove({task->payload});
        }, [this, task](const Error& error) { settle(task, [&] { fail(task, error); }); });
    }

    static void fail(const TaskPointer& task, const Error& error) { task->promise.set_exception(std::make_exception_ptr(error)); }

    // Submit what the credit allows, in messages of at most kMessageBytes.
    void pump() {
        while (scheduler_.is_up() && !queue_.empty()) {
            std::vector<TaskPointer> batch;
            std::map<std::string, uint16_t> groups;
            size_t bytes = 0;
            while (!queue_.empty()) {
                const auto task = queue_.front();
                if (!tasks_.count(task->id)) {  // it was cancelled
                    queue_.pop_front();
                    continue;
                }
                const auto size = task->payload.size(), total = submitted_bytes_ + bytes;
                const bool credit = (total == 0 || total + size <= byte_credit_) &&
                    (task_credit_ == 0 || submitted_tasks_ + batch.size() < task_credit_);
                const bool full = !batch.empty() && (bytes + size > kMessageBytes || batch.size() == kMessageTasks);
                if (!credit || full || (!groups.count(task->group) && groups.size() == kMessageGroups)) break;
                groups.emplace(task->group, groups.size());
                batch.push_back(task);
                bytes += size;
                queue_.pop_front();
            }
            if (batch.empty()) return;
            submit_batch(batch, groups);
        }
    }

    void submit_batch(const std::vector<TaskPointer>& batch, const std::map<std::string, uint16_t>& groups) {
        Builder builder;
        auto submit = builder.initRoot<Message>().initSubmit();
        auto written = submit.initGroups(groups.size());
        for (const auto& [group, at] : groups) written.set(at, bytes_of(group));
        auto tasks = submit.initTasks(batch.size());
        auto lengths = submit.initCallsLengths(batch.size());
        capnp::List<uint16_t>::Builder task_groups{};
        if (groups.size() > 1) task_groups = submit.initTaskGroups(batch.size());
        std::vector<uint32_t> stored;
        std::map<std::string, std::string> functions;
        std::string payload;
        for (uint32_t at = 0; at < batch.size(); ++at) {
            auto& task = *batch[at];
            tasks.set(at, task.id);
            lengths.set(at, task.payload.size());
            if (groups.size() > 1) task_groups.set(at, groups.at(task.group));
            if (task.stored) stored.push_back(at);
            if (defined_.emplace(task.function, task.name).second) functions.emplace(task.function, task.name);
            payload += task.payload;
            task.submitted = true;
            submitted_bytes_ += task.payload.size();
            submitted_tasks_ += 1;
        }
        auto positions = submit.initStored(stored.size());
        for (size_t at = 0; at < stored.size(); ++at) positions.set(at, stored[at]);
        define(submit, functions);
        scheduler_.send(builder, payload);
    }

    // Fill in the functions of a Submit or Functions: without bodies, they are known by their names.
    template <typename Definitions>
    static void define(Definitions definitions, const std::map<std::string, std::string>& functions) {
        auto ids = definitions.initFunctions(functions.size());
        auto names = definitions.initNames(functions.size());
        definitions.initBodiesLengths(functions.size());
        unsigned at = 0;
        for (const auto& [id, name] : functions) {
            ids.set(at, bytes_of(id));
            names.set(at++, name);
        }
    }

    void cancel_at_scheduler(uint64_t id) {
        Builder builder;
        builder.initRoot<Message>().initCancel().initTasks(1).set(0, id);
        scheduler_.send(builder);
    }

    void cancel_now(uint64_t id) {
        const auto found = tasks_.find(id);
        if (found == tasks_.end()) return;
        const auto task = found->second;
        if (task->submitted) cancel_at_scheduler(id);
        settle(task, [&] { fail(task, {"CancelledError", "the call was cancelled"}); });
    }

    // --- what the scheduler says ----------------------------------------------------------------------------------

    void up(Welcome::Reader welcome, bool resumed) {
        byte_credit_ = welcome.getSessionCredit();
        task_credit_ = welcome.getTaskCredit();
        storage_address_ = welcome.getStorageAddress().cStr();
        session_token_ = text(welcome.getSessionToken());
        if (!resumed) {
            defined_.clear();
            std::vector<uint64_t> wanted;
            for (const auto& [id, task] : tasks_) if (task->submitted) wanted.push_back(id);
            for (size_t at = 0; known_ && at <= wanted.size(); at += kMessageTasks) {
                Builder builder;
                const auto count = std::min(kMessageTasks, wanted.size() - at);
                auto list = builder.initRoot<Message>().initReconcile().initWanted(count);
                for (size_t each = 0; each < count; ++each) list.set(each, wanted[at + each]);
                scheduler_.send(builder);
            }
        }
        if (!known_) connected_.set_value();
        known_ = true;
    }

    void received(Message::Reader message, std::string_view payload) {
        if (message.isDone()) done(message.getDone(), payload);
        else if (message.isNeedTasks()) for (auto id : message.getNeedTasks().getTasks()) submit_again(id);
        else if (message.isGoodbye()) lost({"SchedulerLostError", "the cluster has ended: " + std::string(message.getGoodbye().getReason().cStr())});
        else if (message.isTaskCredit()) task_credit_ = message.getTaskCredit().getTasks();
        else if (message.isDeleteObjects()) for (auto each : message.getDeleteObjects().getObjects()) remove({text(each)});
        else if (message.isNeedFunctions()) {
            std::map<std::string, std::string> functions;
            for (auto id : message.getNeedFunctions().getFunctions()) {
                if (const auto found = defined_.find(text(id)); found != defined_.end()) functions.insert(*found);
            }
            Builder builder;
            define(builder.initRoot<Message>().initFunctions(), functions);
            if (!functions.empty()) scheduler_.send(builder);
        }
    }

    void done(Done::Reader done, std::string_view payload) {
        std::vector<bool> stored(done.getTasks().size());
        for (auto at : done.getStored()) if (at < stored.size()) stored[at] = true;
        const auto lengths = done.getResultsLengths();
        size_t start = 0;
        for (unsigned at = 0; at < done.getTasks().size() && at < lengths.size(); ++at) {
            const auto id = done.getTasks()[at];
            const auto status = done.getStatuses()[at];
            const std::string outcome(payload.substr(std::min(start, payload.size()), lengths[at]));
            start += lengths[at];
            if (released_.empty()) released_since_ = Clock::now();
            released_.push_back(id);
            const auto found = tasks_.find(id);
            if (found == tasks_.end()) {
                if (stored[at]) remove({outcome});
                continue;
            }
            const auto task = found->second;
            if (!stored[at]) {
                outcome_of(task, status, outcome);
                continue;
            }
            fetch(outcome, [this, task, status, outcome](const std::string& bytes) {
                remove({outcome});
                outcome_of(task, status, bytes);
            }, [this, task](const Error& error) { settle(task, [&] { fail(task, error); }); });
        }
    }

    void outcome_of(const TaskPointer& task, uint8_t status, const std::string& payload) {
        settle(task, [&] {
            if (status == kValue) task->promise.set_value(payload);
            else fail(task, status == kCancelled ? Error("CancelledError", "the call was cancelled") : described(payload));
        });
    }

    void forget_submitted(Task& task) {
        if (!task.submitted) return;
        task.submitted = false;
        submitted_bytes_ -= task.payload.size();
        submitted_tasks_ -= 1;
    }

    void settle(const TaskPointer& task, const std::function<void()>& tell) {
        if (!tasks_.erase(task->id)) return;
        forget_submitted(*task);
        if (task->stored) remove({task->payload});
        tell();
    }

    void submit_again(uint64_t id) {
        const auto found = tasks_.find(id);
        if (found == tasks_.end() || !found->second->submitted) return;
        forget_submitted(*found->second);
        queue_.push_back(found->second);
    }

    void release(bool now = false) {
        if (released_.empty() || (!now && Clock::now() < released_since_ + kRelease)) return;
        for (size_t at = 0; at < released_.size(); at += kMessageTasks) {
            Builder builder;
            const auto count = std::min(kMessageTasks, released_.size() - at);
            auto tasks = builder.initRoot<Message>().initRelease().initTasks(count);
            for (size_t each = 0; each < count; ++each) tasks.set(each, released_[at + each]);
            scheduler_.send(builder);
        }
        released_.clear();
    }

    void lost(const Error& error) {
        if (!known_) return end(error);
        const auto tasks = tasks_;
        for (const auto& [_, task] : tasks) settle(task, [&] { fail(task, error); });
    }

    void end(const Error& error) {
        std::vector<std::function<void()>> commands;
        {
            std::lock_guard lock(mutex_);
            if (ended_) return;
            ended_ = error;
            commands.swap(commands_);
        }
        for (auto& command : commands) command();  // calls that came late fail
        const auto tasks = tasks_;
        for (const auto& [_, task] : tasks) settle(task, [&] { fail(task, error); });
        if (!known_) connected_.set_exception(std::make_exception_ptr(error));
        known_ = true;
    }

    // --- object storage -------------------------------------------------------------------------------------------

    Link& storage() {
        if (!storage_) {
            const auto failed = [this](const Error& error) {
                const auto transfers = std::exchange(transfers_, {});
                for (const auto& [_, transfer] : transfers) transfer.fail(error);
            };
            storage_.emplace(context_, storage_address_, keys_, options_.timeout,
                [this](Hello::Builder hello) {
                    hello.setRole(kClient);
                    hello.setService(kStorage);
                    hello.setSession(session_);
                    hello.setSessionKey(bytes_of(session_key_));
                    hello.setSessionToken(bytes_of(session_token_));
                    hello.setName(options_.name);
                },
                Link::Events{[this](Welcome::Reader, bool resumed) {
                     if (resumed) return;
                     for (auto& [request, transfer] : transfers_) {
                         transfer.next = transfer.done = transfer.version = 0;
                         go_on(request, transfer);
                     }
                 },
                 [failed](const std::string& reason) { failed({"HandshakeRefusedError", reason}); },
                 [failed](const std::string& reason) { failed({"StorageLostError", reason}); },
                 [this](Message::Reader message, std::string_view payload) { answered(message, payload); }});
        }
        return *storage_;
    }

    void put(std::string bytes, std::function<void(std::string)> succeed, std::function<void(const Error&)> fail) {
        start({random_bytes(16), std::move(bytes), true, 0, 0, 0, std::move(succeed), std::move(fail)});
    }

    void fetch(const std::string& reference, std::function<void(std::string)> succeed, std::function<void(const Error&)> fail) {
        uint64_t size = 0;
        std::memcpy(&size, reference.data() + 16, sizeof size);
        start({reference.substr(0, 16), std::string(size, '\0'), false, 0, 0, 0, std::move(succeed), std::move(fail)});
    }

    void start(Transfer transfer) {
        const auto request = ++requests_;
        auto& started = transfers_[request] = std::move(transfer);
        if (storage().is_up()) go_on(request, started);
    }

    // Send, or ask for, parts up to the window.
    void go_on(uint64_t request, Transfer& transfer) {
        for (; transfer.next < transfer.bytes.size() && transfer.next - transfer.done < kWindow * kPart; transfer.next += kPart) {
            Builder builder;
            auto message = builder.initRoot<Message>();
            if (transfer.put) {
                auto put = message.initPutObject();
                const auto part = std::string_view(transfer.bytes).substr(transfer.next, kPart);
                put.setRequest(request);
                put.setObject(bytes_of(transfer.object));
                put.setSession(session_);
                put.setSize(transfer.bytes.size());
                put.setOffset(transfer.next);
                put.initPartsLengths(1).set(0, part.size());
                storage_->send(builder, part);
            } else {
                auto get = message.initGetObject();
                get.setRequest(request);
                get.setObject(bytes_of(transfer.object));
                get.setOffset(transfer.next);
                get.setLimit(kPart);
                storage_->send(builder);
            }
        }
    }

    void answered(Message::Reader message, std::string_view payload) {
        if (!message.isObjectStored() && !message.isObjectPart()) return;
        const auto request = message.isObjectStored() ? message.getObjectStored().getRequest() : message.getObjectPart().getRequest();
        const auto found = transfers_.find(request);
        if (found == transfers_.end()) return;
        auto& transfer = found->second;
        std::string error = message.isObjectStored() ? message.getObjectStored().getError().cStr() : message.getObjectPart().getError().cStr();
        if (message.isObjectStored()) {
            transfer.done = std::min(transfer.done + kPart, transfer.bytes.size());
        } else {
            const auto part = message.getObjectPart();
            if (transfer.done == 0) transfer.version = part.getVersion();
            if (error.empty() && (!part.getFound() || part.getVersion() != transfer.version || payload.size() > transfer.bytes.size() - transfer.done)) {
                error = R"({"error": "ObjectNotFoundError", "message": "an object is not stored, or was replaced", "details": {}})";
            } else {
                transfer.bytes.replace(transfer.done, payload.size(), payload);
                transfer.done += payload.size();
            }
        }
        if (error.empty() && transfer.done < transfer.bytes.size()) return go_on(request, transfer);
        const auto ended = std::move(transfer);
        transfers_.erase(found);
        if (!error.empty()) return ended.fail(described(error));
        if (!ended.put) return ended.succeed(ended.bytes);
        const uint64_t size = ended.bytes.size();
        ended.succeed(ended.object + std::string(reinterpret_cast<const char*>(&size), sizeof size));
    }

    void remove(const std::string& reference) {
        Builder builder;
        auto message = builder.initRoot<Message>().initDeleteObjects();
        message.initObjects(1).set(0, bytes_of(std::string_view(reference).substr(0, 16)));
        message.setSession(session_);
        storage().send(builder);
    }

    const Options options_;
    const Keys keys_;
    const uint32_t session_;
    const std::string session_key_ = random_bytes(16);
    const int wake_;
    zmq::context_t context_;
    Link scheduler_;
    std::optional<Link> storage_;
    std::string storage_address_, session_token_;
    std::thread thread_;
    std::atomic<bool> stop_ = false;
    std::promise<void> connected_;
    bool known_ = false;  // whether the scheduler has answered once, or this client has ended
    std::unordered_map<uint64_t, TaskPointer> tasks_;
    std::deque<TaskPointer> queue_;
    std::map<std::string, std::string> defined_;  // functions that the scheduler of this stream was told
    std::map<uint64_t, Transfer> transfers_;
    uint64_t requests_ = 0, byte_credit_ = 0, task_credit_ = 0, submitted_bytes_ = 0, submitted_tasks_ = 0;
    std::vector<uint64_t> released_;
    Clock::time_point released_since_;
    std::mutex mutex_;  // of what follows
    std::vector<std::function<void()>> commands_;
    std::optional<Error> ended_;
    uint32_t count_ = 0;
};

Client::Client(const std::string& address, const Options& options) {
    random_bytes(1);  // before anything else is drawn
    core_ = std::make_unique<Core>(address, options);
}

Client::~Client() = default;

Call Client::submit(const std::string& function, std::string arguments, const CallOptions& options) {
    return core_->submit(function, std::move(arguments), options);
}

std::vector<std::string> Client::map(const std::string& function, const std::vector<std::string>& items, const CallOptions& options) {
    std::vector<Call> calls;
    calls.reserve(items.size());
    for (const auto& item : items) calls.push_back(submit(function, '[' + item + ']', options));
    std::vector<std::string> results;
    results.reserve(items.size());
    try {
        for (const auto& call : calls) results.push_back(call.result.get());
    } catch (...) {
        for (const auto& call : calls) cancel(call);
        throw;
    }
    return results;
}

void Client::cancel(const Call& call) { core_->cancel(call.task_id); }

}  // namespace scaler
