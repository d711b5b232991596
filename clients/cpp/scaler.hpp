// A client of Scaler: calls Python functions on a cluster by their names. Arguments and results are JSON texts.
#pragma once

#include <chrono>
#include <cstdint>
#include <future>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

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
    std::chrono::milliseconds timeout{60'000};  // how long the services may be away before calls fail
    std::string keys;  // a directory with client.key; empty for a cluster that runs with --insecure
};

struct CallOptions {
    int32_t priority = 0;  // higher runs first
    uint16_t retries = 0;  // how often a call that raised is repeated
    double timeout_seconds = 0;  // from the start of a run; 0 is no limit
    std::map<std::string, int64_t> capabilities;  // least quantities that the worker must offer; -1: presence
};

// A call that was submitted.
struct Call {
    uint64_t task_id;
    std::shared_future<std::string> result;  // JSON; get() throws Error
};

class Client {
public:
    // Connect to a scheduler, such as tcp://127.0.0.1:2345. Throws Error if it refuses or does not answer in time.
    explicit Client(const std::string& address, const Options& options = {});
    // Cancel what is unfinished, and disconnect.
    ~Client();
    Client(const Client&) = delete;
    Client& operator=(const Client&) = delete;

    // Call module:qualname with a JSON array of arguments, or {"args": [...], "kwargs": {...}}. Any thread may call.
    Call submit(const std::string& function, std::string arguments, const CallOptions& options = {});
    // Call the function with each item, a JSON text: the results in order. Throws the first failure in order.
    std::vector<std::string> map(
        const std::string& function, const std::vector<std::string>& items, const CallOptions& options = {});
    // Cancel a call, queued or running: its result throws CancelledError. Does nothing once it has ended.
    void cancel(const Call& call);

private:
    class Core;
    std::unique_ptr<Core> core_;
};

}  // namespace scaler
