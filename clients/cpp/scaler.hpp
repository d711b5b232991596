// A client of Scaler: calls Python functions on a cluster by their names. Arguments and results are JSON texts.
#pragma once

#include <sys/eventfd.h>
#include <sys/stat.h>

#include <csignal>
#include <fstream>
#include <future>
#include <iomanip>
#include <kj/encoding.h>
#include <list>
#include <mutex>
#include <nlohmann/json.hpp>
#include <numeric>
#include <sstream>
#include <thread>

#include "link.hpp"

namespace scaler {

// Why a call failed. `name` is the type of the Python exception, or the name of an error of the engine (section 2.2 of
// the protocol); `traceback` is from the worker, empty for errors of the engine.
struct Error : std::runtime_error {
    Error(std::string name, const std::string& message, std::string traceback = {})
        : std::runtime_error(message), name(std::move(name)), traceback(std::move(traceback)) {}
    std::string name, traceback;
};

struct Options {
    std::string name = "C++";  // what the cluster calls this client
    std::string keys;  // a directory with client.key; empty for a cluster that runs with --insecure
    milliseconds timeout = 60s;  // how long the services may be away before calls fail
};

struct Call {
    uint64_t id;
    std::shared_future<std::string> result;  // JSON; get() throws Error
};

// A thread owns the links; the mutex guards everything else, so any thread may call.
class Client : LinkOwner {
public:
    // Connect to a scheduler, such as tcp://127.0.0.1:2345. Throws Error if it refuses or does not answer in time.
    // The end of the client cancels what is unfinished.
    explicit Client(const std::string& address, const Options& options = {})
        : options_(options), keys_(read_keys(options.keys)), scheduler_(connect(checked(address))),
          thread_([this](std::stop_token stop) { run(stop); }) {
        is_known_.get_future().get();
    }

    // Call module:qualname with a JSON array of arguments, or {"args": [...], "kwargs": {...}}.
    Call submit(const std::string& function, std::string arguments) {
        const auto shown = nlohmann::json(function.substr(0, 4'096)).dump(-1, ' ', false, nlohmann::json::error_handler_t::ignore);
        if (shown != '"' + function + '"' || function.find(':') == std::string::npos)
            throw Error("TypeError", shown.substr(0, 100) + " is not module:qualname, in at most 4,096 bytes of UTF-8");
        std::lock_guard lock(mutex_);
        if (ended_) throw *ended_;
        const auto id = ++last_;
        auto& task = tasks_[id] = Task{.id = id, .function = function, .payload = std::move(arguments)};
        queue_.push_back(id);
        eventfd_write(wake_, 1);
        return {id, task.result.get_future().share()};
    }

    // Call the function with each item, a JSON text: the results in order. Throws the first failure in order.
    std::vector<std::string> map(const std::string& function, const std::vector<std::string>& items) {
        std::vector<Call> calls;
        for (const auto& item : items) calls.push_back(submit(function, '[' + item + ']'));
        KJ_ON_SCOPE_FAILURE(for (const auto& call : calls) cancel(call));
        std::vector<std::string> results;
        for (const auto& call : calls) results.push_back(call.result.get());
        return results;
    }

    // Cancel a call, queued or running: its result throws CancelledError. Does nothing once it has ended.
    void cancel(const Call& call) {
        std::lock_guard lock(mutex_);
        cancelled_.push_back(call.id);
        eventfd_write(wake_, 1);
    }

private:
    static constexpr size_t kInline = 16'384, kMessageBytes = 1 << 20;
    enum : uint8_t { kClient = 1, kStorage = 1, kJson = 1, kValue = 0, kCancelled = 3, kLost = 4 };

    // A call that has not ended. A long one is stored before it is submitted, and a long result is fetched.
    struct Task {
        uint64_t id;
        enum State { kQueued, kSubmitted, kStoring, kFetching } state = kQueued;
        uint8_t status = kValue;
        std::string function;
        std::string payload;  // the call, or its reference once it is stored; later the result
        uint64_t size = 0;  // of the object that is stored or fetched
        uint64_t moved = 0;  // bytes of it that were
        uint64_t version = 0;  // of the object that is fetched
        std::vector<std::string> objects{};  // that are stored for this call
        std::promise<std::string> result{};
    };

    void run(std::stop_token stop) {
        sigset_t all;
        sigfillset(&all);
        pthread_sigmask(SIG_BLOCK, &all, nullptr);  // signals are for the program's threads; here they interrupt calls
        std::unique_lock lock(mutex_);
        try {
            while (!stop.stop_requested()) turn(lock);
            end({"ClientQuitError", "this client is closed"});
            for (auto& link : links_) link.close();
        } catch (const std::exception& error) {  // such as no memory, or no file that may be opened
            end({"ScalerError", error.what()});
        }
    }

    void turn(std::unique_lock<std::mutex>& lock) {
        std::vector<zmq::pollitem_t> items{{nullptr, wake_, ZMQ_POLLIN, 0}};
        for (auto& link : links_) link.turn(items);
        for (const auto id : std::exchange(cancelled_, {})) withdraw(id);
        while (scheduler_.is_up() && submit_next()) {}
        lock.unlock();
        KJ_DEFER(lock.lock());
        zmq::poll(items, 20ms);
        eventfd_t woken;
        eventfd_read(wake_, &woken);
    }

    void withdraw(uint64_t id) {
        scheduler_.send([&](auto message) { message.initCancel().initTasks(1).set(0, id); });
        if (tasks_.count(id)) fail(tasks_[id], {"CancelledError", "the call was cancelled"});
    }

    // Submit the next calls of one function, as many as there is credit for; false if there are none.
    bool submit_next() {
        std::vector<uint64_t> ids;
        std::vector<uint32_t> lengths, stored;
        std::string function, payload;
        for (; !queue_.empty() && submitted_ < std::min(window_, task_credit_); queue_.pop_front()) {
            const auto found = tasks_.find(queue_.front());
            if (found == tasks_.end()) continue;  // it was cancelled
            auto& task = found->second;
            if (task.payload.size() > kInline) {
                begin(task, Task::kStoring, random_bytes(16));
                continue;
            }
            if (ids.empty()) function = task.function;
            if (task.function != function || payload.size() + task.payload.size() > kMessageBytes) break;
            if (!task.objects.empty()) stored.push_back(ids.size());
            ids.push_back(task.id);
            lengths.push_back(task.payload.size());
            payload += task.payload;
            task.state = Task::kSubmitted;
            submitted_ += 1;
        }
        if (ids.empty()) return false;
        scheduler_.send([&](auto message) {
            auto submit = message.initSubmit();
            submit.initGroups(1).set(0, bytes_of(group(function)));
            submit.setTasks(list(ids));
            submit.setCallsLengths(list(lengths));
            submit.setStored(list(stored));
            define(submit, function);
        }, payload);
        return true;
    }

    void greet(Link& link, Hello::Builder hello) override {
        hello.setRole(kClient);
        hello.setSession(session_);
        hello.setName(options_.name);
        if (&link == &scheduler_) return;
        hello.setService(kStorage);
        hello.setSessionKey(bytes_of(session_key_));
        hello.setSessionToken(bytes_of(session_token_));
    }

    void connected(Link& link, Welcome::Reader welcome, bool resumed) override {
        const bool is_storage = &link != &scheduler_;
        for (auto& [_, task] : tasks_) if (is_storage && !resumed) move(task, 0);
        if (is_storage) return;
        window_ = std::max(welcome.getSessionCredit() / kInline, 1ul);  // no call that is submitted is longer
        task_credit_ = welcome.getTaskCredit() ? welcome.getTaskCredit() : window_;
        storage_address_ = welcome.getStorageAddress();
        session_token_ = text(welcome.getSessionToken());
        if (!std::exchange(known_, true)) return is_known_.set_value();
        std::vector<uint64_t> wanted;
        for (const auto& [id, task] : tasks_) if (task.state == Task::kSubmitted) wanted.push_back(id);
        if (!resumed) scheduler_.send([&](auto message) { message.initReconcile().setWanted(list(wanted)); });
    }

    void failed(Link& link, const std::string& reason, bool for_good) override {
        if (for_good) end({"HandshakeRefusedError", reason});
        else if (&link != &scheduler_) fail_all({"StorageLostError", reason}, is_moving);
        else known_ ? fail_all({"SchedulerLostError", reason}) : end({"SchedulerLostError", reason});
    }

    void received(Link& link, Message::Reader message, std::string_view payload) override {
        if (message.isDone()) done(message.getDone(), payload);
        else if (message.isObjectStored()) answered(message.getObjectStored(), payload);
        else if (message.isObjectPart()) answered(message.getObjectPart(), payload);
        else if (message.isTaskCredit()) task_credit_ = message.getTaskCredit().getTasks();
        else if (message.isNeedTasks()) for (auto id : message.getNeedTasks().getTasks()) submit_again(id);
        else if (message.isNeedFunctions()) for (auto id : message.getNeedFunctions().getFunctions()) define_again(text(id));
        else if (message.isDeleteObjects()) for (auto id : message.getDeleteObjects().getObjects()) remove(text(id));
        else if (message.isGoodbye() && &link == &scheduler_)
            failed(link, kj::str("the cluster has ended. ", message.getGoodbye().getReason()).cStr(), false);
    }

    void submit_again(uint64_t id) {
        const auto found = tasks_.find(id);
        if (found == tasks_.end() || found->second.state != Task::kSubmitted) return;
        leave_scheduler(found->second);
        queue_.push_back(id);
    }

    void define_again(const std::string& id) {
        for (const auto& [_, task] : tasks_) if (const auto& name = task.function; function_id(name) == id)
            return scheduler_.send([&](auto message) { define(message.initFunctions(), name); });
    }

    void done(Done::Reader done, std::string_view payload) {
        const auto ids = done.getTasks();
        check(done, payload.size());
        scheduler_.send([&](auto message) { message.initRelease().setTasks(ids); });
        std::vector<bool> stored(ids.size());
        for (const auto at : done.getStored()) stored[at] = true;
        for (unsigned at = 0; at < ids.size(); ++at) {
            const auto outcome = payload.substr(0, done.getResultsLengths()[at]);
            payload.remove_prefix(outcome.size());
            uint64_t size = 0;
            if (stored[at]) std::memcpy(&size, outcome.data() + 16, sizeof size);
            const std::string object(outcome.substr(0, 16));
            const auto found = tasks_.find(ids[at]);
            if (found == tasks_.end() && stored[at]) remove(object);
            if (found == tasks_.end()) continue;
            auto& task = found->second;
            leave_scheduler(task);
            task.status = done.getStatuses()[at];
            task.size = size;
            task.payload = stored[at] ? "" : outcome;
            size > 0 ? begin(task, Task::kFetching, object) : finish(task);
        }
    }

    // Throws kj::Exception for a Done that contradicts itself.
    static void check(Done::Reader done, size_t size) {
        const auto statuses = done.getStatuses();
        const auto lengths = done.getResultsLengths();
        KJ_REQUIRE(statuses.size() == done.getTasks().size() && lengths.size() == statuses.size(), "unequal columns");
        for (const auto status : statuses) KJ_REQUIRE(status <= kLost, "an unknown status");
        for (const auto at : done.getStored()) KJ_REQUIRE(at < lengths.size() && lengths[at] == 24, "no reference");
        KJ_REQUIRE(std::accumulate(lengths.begin(), lengths.end(), size_t{0}) == size, "another payload");
    }

    void finish(Task& task) {
        if (task.status == kCancelled) return fail(task, {"CancelledError", "the call was cancelled"});
        if (task.status != kValue) return fail(task, described(task.payload));
        task.result.set_value(std::move(task.payload));
        forget(task);
    }

    void fail(Task& task, const Error& error) {
        task.result.set_exception(std::make_exception_ptr(error));
        forget(task);
    }

    void fail_all(const Error& error, bool (*which)(const Task&) = [](const Task&) { return true; }) {
        for (auto at = tasks_.begin(); at != tasks_.end();) if (auto& task = at++->second; which(task)) fail(task, error);
    }

    void end(const Error& error) {
        ended_ = error;
        if (!std::exchange(known_, true)) is_known_.set_exception(std::make_exception_ptr(error));
        fail_all(error);
    }

    void forget(Task& task) {
        leave_scheduler(task);
        for (const auto& object : task.objects) remove(object);
        tasks_.erase(task.id);
    }

    void leave_scheduler(Task& task) {
        submitted_ -= std::exchange(task.state, Task::kQueued) == Task::kSubmitted;
    }

    Link& connect(const std::string& address) {
        return links_.emplace_back(static_cast<LinkOwner&>(*this), context_, address, keys_, options_.timeout);
    }

    Link& storage() { return links_.size() > 1 ? links_.back() : connect(storage_address_); }

    // Begin to store the payload as an object, or to fetch it from one.
    void begin(Task& task, Task::State state, const std::string& object) {
        task.state = state;
        if (state == Task::kStoring) task.size = task.payload.size();
        task.objects.push_back(object);
        move(task, 0);
    }

    void answered(auto answer, std::string_view part) {
        const auto found = tasks_.find(answer.getRequest());
        if (found == tasks_.end() || !is_moving(found->second)) return;
        answer.hasError() ? fail(found->second, described(answer.getError())) : moved(found->second, answer, part);
    }

    void moved(Task& task, ObjectStored::Reader, std::string_view) {
        move(task, task.moved + part_size(task));
        if (task.moved < task.size) return;
        task.payload = task.objects.back() + std::string(reinterpret_cast<const char*>(&task.size), sizeof task.size);
        task.state = Task::kQueued;
        queue_.push_back(task.id);
    }

    void moved(Task& task, ObjectPart::Reader answer, std::string_view part) {
        if (!answer.getFound()) return fail(task, {"ObjectNotFoundError", "the result is not stored any more"});
        if (part.size() != part_size(task)) return fail(task, {"ObjectNotFoundError", "the stored result has another size than "
            + std::to_string(task.size) + " bytes: a part at " + std::to_string(task.moved) + " has " + std::to_string(part.size())});
        if (task.moved > 0 && answer.getVersion() != task.version) return move(task, 0);
        task.version = answer.getVersion();
        task.payload.replace(task.moved, part.size(), part);
        move(task, task.moved + part.size());
        if (task.moved == task.size) finish(task);
    }

    // Of the part that moves next.
    static uint64_t part_size(const Task& task) { return std::min<uint64_t>(kMessageBytes, task.size - task.moved); }

    static bool is_moving(const Task& task) { return task.state == Task::kStoring || task.state == Task::kFetching; }

    // So much of the payload was stored or fetched: send the next part, or ask for it.
    void move(Task& task, uint64_t moved) {
        task.moved = moved;
        if (!is_moving(task) || moved == task.size) return;
        const auto ask = [&](auto request) {
            request.setRequest(task.id);
            request.setObject(bytes_of(task.objects.back()));
            request.setOffset(moved);
            return request;
        };
        if (task.state == Task::kFetching)
            return storage().send([&](auto message) { ask(message.initGetObject()).setLimit(part_size(task)); });
        const auto part = std::string_view(task.payload).substr(moved, part_size(task));
        storage().send([&](auto message) {
            auto put = ask(message.initPutObject());
            put.setSession(session_);
            put.setSize(task.size);
            put.initPartsLengths(1).set(0, part.size());
        }, part);
    }

    void remove(std::string_view object) {
        storage().send([&](auto message) {
            message.initDeleteObjects().setSession(session_);
            message.getDeleteObjects().initObjects(1).set(0, bytes_of(object));
        });
    }

    static auto list(const auto& numbers) { return kj::arrayPtr(numbers.data(), numbers.size()); }

    static std::string function_id(const std::string& name) {
        kj::byte id[16];
        crypto_generichash(id, sizeof id, bytes_of('\1' + name).begin(), 1 + name.size(), nullptr, 0);
        return text(id);
    }

    static std::string group(const std::string& function) {
        capnp::MallocMessageBuilder builder;
        auto group = builder.initRoot<Group>();
        group.setFunction(bytes_of(function_id(function)));
        group.setEncoding(kJson);
        return text(capnp::messageToFlatArray(builder).asBytes());
    }

    // Fill in the function of a Submit or Functions: without a body, it is known by its name.
    static void define(auto definitions, const std::string& function) {
        definitions.initFunctions(1).set(0, bytes_of(function_id(function)));
        definitions.initNames(1).set(0, function);
        definitions.initBodiesLengths(1);
    }

    // The error in the payload of an outcome that is no value. What describes none is the message itself.
    static Error described(const std::string& payload) {
        try {
            const auto error = nlohmann::json::parse(payload);
            return {error.at("error"), error.at("message"), error.at("details").value("traceback", "")};
        } catch (const nlohmann::json::exception&) {  // such as a text that is not Unicode
            return {"ScalerError", "no error, but " + payload.substr(0, 1'000)};
        }
    }

    static const std::string& checked(const std::string& address) {
        const int port = std::atoi(address.c_str() + address.rfind(':') + 1);
        if (address.starts_with("ipc:///") || (address.starts_with("tcp://") && port > 0 && port < 65'536)) return address;
        throw Error("AddressError", '"' + address + "\" is no address: give one such as tcp://127.0.0.1:2345");
    }

    static std::map<std::string, std::string> read_keys(const std::string& directory) {
        if (directory.empty()) return {};
        const std::string path = directory + "/client.key";
        if (struct stat found {}; stat(path.c_str(), &found) != 0 || (found.st_mode & 077))
            throw Error("KeyFileError", path + " is not there, or not private: copy it, and chmod 600 it");
        std::map<std::string, std::string> keys;
        std::ifstream file(path);
        for (std::string line; std::getline(file, line);) {
            std::string name, equals, digits;
            std::istringstream(line) >> name >> equals >> std::quoted(digits);
            const auto key = kj::decodeHex(bytes_of(digits).asChars());
            if (!key.hadErrors && key.size() == 32) keys[name] = text(key);
        }
        for (const auto name : {"server", "public", "secret"})
            if (!keys.count(name)) throw Error("KeyFileError", path + " lacks a key: copy it again");
        return keys;
    }

    const Options options_;
    const std::map<std::string, std::string> keys_;
    const uint32_t session_ = 1 + randombytes_uniform(0x7ffffffe);
    const std::string session_key_ = random_bytes(16);
    const kj::AutoCloseFd wake_{eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)};
    std::mutex mutex_;
    std::map<uint64_t, Task> tasks_;
    std::deque<uint64_t> queue_;
    std::vector<uint64_t> cancelled_;
    uint64_t last_ = uint64_t{session_} << 32, submitted_ = 0, window_ = 0, task_credit_ = 0;
    bool known_ = false;  // whether the scheduler has answered, or this client has ended
    std::promise<void> is_known_;
    std::optional<Error> ended_;
    std::string storage_address_, session_token_;
    zmq::context_t context_;
    std::list<Link> links_;  // to the scheduler, and to object storage once that is needed
    Link& scheduler_;
    std::jthread thread_;
};

}  // namespace scaler
